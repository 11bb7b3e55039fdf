"""GET /playground: the page's files, what keeps them harmless, and that they ask what is served."""

import json
import re
import shutil
import socket
import subprocess
from collections.abc import Callable, Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from qguide.commands.playground_games import build_games
from qguide.server.app import create_app
from qguide.server.http.keys import create_key
from qguide.server.settings.settings import SCRIPTED, Settings
from tests.support.serving import serving_app
from tests.unit.server.conftest import FAKES, Serve

FOLDER = Path(__file__).parents[4] / "server" / "playground"
MODULES = sorted(FOLDER.glob("*.js"))
SCRIPT = "\n".join(path.read_text() for path in MODULES)
PATHS = ("/playground", *(f"/playground/{path.name}" for path in sorted(FOLDER.iterdir())))
MEDIA_TYPES = {
    ".css": "text/css; charset=utf-8",
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}


class Elements(HTMLParser):
    """Every element of a page, its attributes, and what stands in scripts and styles."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.all: list[tuple[str, dict[str, str | None]]] = []
        self.inline: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.all.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        if self.all and self.all[-1][0] in ("script", "style") and data.strip():
            self.inline.append(data)

    def values(self, name: str) -> list[str]:
        return [value for _, attributes in self.all if (value := attributes.get(name))]


PAGE = Elements((FOLDER / "index.html").read_text())


@pytest.fixture(scope="module")
def one_server() -> Iterator[TestClient]:
    """A server of fakes for all files of the page."""
    with TestClient(create_app(FAKES), "http://127.0.0.1") as client:
        yield client


@pytest.mark.parametrize("path", PATHS)
def test_every_file_is_served_as_what_it_is_and_may_do_little(one_server: TestClient, path: str) -> None:
    answer = one_server.get(path)
    assert answer.status_code == 200
    name = "index.html" if path == "/playground" else path.rpartition("/")[2]
    assert answer.content == (FOLDER / name).read_bytes()
    assert answer.headers["content-type"] == MEDIA_TYPES[Path(name).suffix]
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["referrer-policy"] == "no-referrer"
    policy = dict(part.split(" ", 1) for part in answer.headers["content-security-policy"].split("; "))
    assert policy["default-src"] == policy["frame-ancestors"] == "'none'"
    assert policy["form-action"] == policy["base-uri"] == "'none'"
    assert policy["script-src"] == policy["style-src"] == policy["connect-src"] == "'self'"
    assert policy["require-trusted-types-for"] == "'script'"


def test_the_root_leads_to_the_page_wherever_a_proxy_puts_it(client: TestClient) -> None:
    answer = client.get("/", follow_redirects=False)
    assert (answer.status_code, answer.headers["location"]) == (307, "playground")
    assert client.get("/").url.path == "/playground"
    answer = client.get("/playground/", follow_redirects=False)
    assert (answer.status_code, answer.headers["location"]) == (307, "../playground")
    assert client.get("/playground/").url.path == "/playground"


def test_the_setting_takes_it_away(serve: Serve) -> None:
    without = serve(FAKES.model_copy(update={"playground": False}))
    for path in ("/", "/playground/", *PATHS, "/playground/abilities"):
        assert without.get(path).status_code == 404, path


def test_it_needs_no_key_and_opens_nothing_else(serve: Serve, tmp_path: Path) -> None:
    keys_file = tmp_path / "keys.json"
    key = create_key(keys_file, "ada")
    settings = FAKES.model_copy(update={"keys_file": keys_file})
    guarded = serve(settings)
    for path in ("/", "/playground/", *PATHS, "/playground/abilities"):
        assert guarded.get(path).status_code == 200, path
    for path in ("/v1/models", "/playgrounds", "/openapi.json"):
        assert guarded.get(path).status_code == 401, path
    assert guarded.get("/playground/missing.js").status_code == 404
    closed = serve(settings.model_copy(update={"playground": False}))
    assert closed.get("/playground").status_code == 401, "it is like any other address then"
    answer = closed.get("/playground", headers={"Authorization": f"Bearer {key}"})
    assert answer.status_code == 404


@pytest.mark.parametrize(
    "path",
    [
        "/playground/../settings.py",
        "/playground/..%2fsettings.py",
        "/playground/%2e%2e/settings.py",
        "/playground/..%5csettings.py",
        "/playground/%2fetc%2fpasswd",
        "/playground/..",
        "/playground/.",
        "/playground/index.html%00",
        "/playground/nested/index.html",
    ],
)
def test_no_other_file_can_be_reached(path: str) -> None:
    """Over a plain socket, because clients tidy such paths up before they send them."""
    with serving_app(create_app(FAKES)) as url:
        host, port = url.removeprefix("http://").split(":")
        with socket.create_connection((host, int(port)), timeout=30) as connection:
            connection.sendall(f"GET {path} HTTP/1.0\r\nHost: {host}\r\n\r\n".encode())
            answer = b"".join(iter(lambda: connection.recv(65536), b""))
    assert answer.split(b" ", 2)[1] == b"404"
    assert b'"code":"not_found"' in answer


def test_abilities_say_what_the_page_may_offer(serve: Serve, tmp_path: Path) -> None:
    plain = serve(FAKES).get("/playground/abilities").json()
    assert plain == {
        "needs_key": False,
        "perturb": False,
        "num_candidates": 5,
        "max_candidates": 8,
        "recorded": False,
        "games": None,
        "learns": False,
    }
    keys_file = tmp_path / "keys.json"
    create_key(keys_file, "ada")
    more = {"keys_file": keys_file, "paraphraser": SCRIPTED, "num_candidates": 3}
    able = serve(FAKES.model_copy(update=more)).get("/playground/abilities").json()
    assert (able["needs_key"], able["perturb"], able["num_candidates"]) == (True, True, 3)


def test_nothing_stands_in_the_page_that_its_policy_forbids() -> None:
    assert PAGE.inline == []
    for tag, attributes in PAGE.all:
        forbidden = [name for name in attributes if name == "style" or name.startswith("on")]
        assert not forbidden, (tag, forbidden)


def test_everything_comes_from_this_server_and_is_there() -> None:
    names = {path.name for path in FOLDER.iterdir()}
    for address in [*PAGE.values("src"), *PAGE.values("href")]:
        assert address.startswith("#") or address.removeprefix("playground/") in names, address
    style = (FOLDER / "style.css").read_text()
    assert "url(" not in style
    assert "@import" not in style
    addresses = set(re.findall(r"https?://[^\s\"')]+", SCRIPT + style))
    assert addresses == {"http://www.w3.org/2000/svg"}, "a name, which nobody fetches"
    imports = re.findall(r'^(?:import|\}).* from "(.+?)"|\bimport\("(.+?)"', SCRIPT, re.MULTILINE)
    assert imports
    for static, dynamic in imports:
        assert (static or dynamic).removeprefix("./") in names


def test_no_text_is_ever_made_markup_or_code() -> None:
    for sink in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval("):
        assert sink not in SCRIPT
    assert "localStorage" not in SCRIPT
    assert "cookie" not in SCRIPT


def test_every_field_has_a_label() -> None:
    page = (FOLDER / "index.html").read_text()
    labelled = set(PAGE.values("for"))
    for field in re.finditer(r"<(?:input|select|textarea)\b[^>]*>", page):
        before = page[: field.start()]
        inside = before.rfind("<label") > before.rfind("</label")
        identity = re.search(r'\bid="([^"]+)"', field[0])
        assert inside or (identity and identity[1] in labelled), field[0]


def test_every_element_that_a_module_asks_for_is_in_the_page() -> None:
    asked = set(re.findall(r'byId\("([^"]+)"\)', SCRIPT))
    assert "act-form" in asked
    assert asked <= set(PAGE.values("id"))


@pytest.fixture(scope="module")
def document(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The server's OpenAPI document."""
    episodes = tmp_path_factory.mktemp("episodes")
    settings = Settings(policy=SCRIPTED, admin=True, learn=True, episodes_dir=episodes)
    document: dict[str, Any] = create_app(settings, games=build_games({"name": "fake"})).openapi()
    return document


def test_every_route_that_a_module_calls_is_served(document: dict[str, Any]) -> None:
    calls = re.findall(r'\bask\("(GET|POST)", ["`](.+?)[?"`]', SCRIPT)
    assert len(calls) == len(re.findall(r"(?<!\.)(?<!async )\bask\((?!method)", SCRIPT))
    for method, path in calls:
        named = re.sub(r"/\$\{.+?\}", "/{episode}", path)
        named = re.sub(r"\$\{.+?\}", "", named)  # a query
        assert method.lower() in document["paths"][f"/{named}"], path
    assert len(re.findall(r"\bfetch\(", SCRIPT)) == 1


def fields_of(document: dict[str, Any], *names: str) -> set[str]:
    schemas = document["components"]["schemas"]
    return {field for name in names for field in schemas[name]["properties"]}


def keys_in(module: str, opening: str) -> set[str]:
    """Names of an object's fields, from the line that opens it to the one that closes it."""
    text = (FOLDER / module).read_text().split(opening, 1)[1]
    return set(re.findall(r"^ +(\w+):", text[: text.index("    };")], re.MULTILINE))


def test_what_is_sent_has_the_servers_names(document: dict[str, Any]) -> None:
    sent = keys_in("act.js", "    return {\n")
    assert {"messages", "num_candidates", "episode_id"} <= sent
    assert sent <= fields_of(document, "ActRequest")
    sent = keys_in("score.js", "const request = {\n")
    assert sent == {"messages", "candidates", "q_model"}
    assert sent <= fields_of(document, "ScoreRequestBody")


@pytest.mark.parametrize(
    ("value", "schemas"),
    [
        ("answer", ("ActResponse", "ScoreResponse", "GameAnswer", "ErrorBody")),
        ("usage", ("Usage",)),
        ("timings", ("Timings",)),
        ("abilities", ("PageFeatures",)),
        ("models", ("ModelList",)),
        ("card", ("ModelCard",)),
    ],
)
def test_what_is_read_has_the_servers_names(document: dict[str, Any], value: str, schemas: tuple[str, ...]) -> None:
    read = set(re.findall(rf"\b{value}\??\.(?!js\b)(\w+)", SCRIPT))
    assert read
    assert read <= fields_of(document, *schemas)


def test_every_reason_of_a_choice_has_its_words(document: dict[str, Any]) -> None:
    reasons = document["components"]["schemas"]["ActResponse"]["properties"]["reason"]["enum"]
    told = re.search(r"const REASONS = \{(.+?)\n\};", SCRIPT, re.DOTALL)
    assert told
    assert set(re.findall(r"^  (\w+):", told[1], re.MULTILINE)) == set(reasons)


@pytest.mark.parametrize("module", [path.name for path in MODULES])
def test_node_finds_nothing_wrong_with_a_module(module: str) -> None:
    if not (node := shutil.which("node")):
        pytest.skip("no node on PATH")
    source = (FOLDER / module).read_bytes()
    command = [node, "--input-type=module", "--check"]
    done = subprocess.run(command, input=source, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr.decode()


Evaluate = Callable[[str], Any]


@pytest.fixture
def evaluate(tmp_path: Path) -> Evaluate:
    """The JSON that a script in a module prints; it stands beside the page's own."""
    if not (node := shutil.which("node")):
        pytest.skip("no node on PATH")
    for module in MODULES:
        shutil.copy(module, tmp_path)
    (tmp_path / "package.json").write_text('{"type": "module"}')

    def run(script: str) -> Any:
        (tmp_path / "script.js").write_text(script)
        command = [node, str(tmp_path / "script.js")]
        done = subprocess.run(command, capture_output=True, check=False)
        assert done.returncode == 0, done.stderr.decode()
        return json.loads(done.stdout)

    return run


def test_an_axis_spans_its_values_and_no_more(evaluate: Evaluate) -> None:
    spans = evaluate(
        """import { axisOf } from "./candidates.js";
        const rows = [[-0.4], [-0.3, -0.1], [-0.2, 0.3], [0.25, 0.75], [0, 0], [5, 5.5]];
        console.log(JSON.stringify(rows.map(axisOf).map(({ low, high }) => [low, high])));"""
    )
    assert spans == [[-0.4, 0], [-0.3, 0], [-0.2, 0.3], [0, 0.75], [0, 1], [4.875, 5.5]]


def test_an_answer_that_breaks_off_is_told_as_such(evaluate: Evaluate) -> None:
    told = evaluate(
        """import { getModels, ServerError } from "./server.js";
        globalThis.document = { baseURI: "http://localhost/" };
        const headers = { "x-request-id": "req-1" };
        globalThis.fetch = async () => new Response('{"half', { headers });
        const error = await getModels().catch((error) => error);
        const { message, status, requestId } = error;
        console.log(JSON.stringify([error instanceof ServerError, message, status, requestId]));"""
    )
    assert told == [True, "the server's answer broke off; ask again", 0, "req-1"]


def test_a_key_lives_for_the_page_where_the_browser_stores_nothing(evaluate: Evaluate) -> None:
    keys = evaluate(
        """const refused = () => { throw new Error("the operation is insecure"); };
        Object.defineProperty(globalThis, "sessionStorage", { get: refused });
        const { key } = await import("./server.js");
        const seen = [key.get()];
        for (const value of ["k-1", ""]) {
          key.set(value);
          seen.push(key.get());
        }
        console.log(JSON.stringify(seen));"""
    )
    assert keys == ["", "k-1", ""]


@pytest.mark.parametrize(
    ("settings", "learns", "expected"),
    [
        (FAKES, "false", "a fixed script, for trying out the page"),
        (Settings(), "false", "trained on ALFWorld, a text game of household tasks"),
        (Settings(), "false", "It has a licence: its choice is above the agent's own"),
        (Settings(policy=SCRIPTED), "false", "nothing chooses among the candidates"),
        (Settings(policy=SCRIPTED), "true", "once a trial has shown that it helps"),
    ],
    ids=["scripted", "embedded", "licensed", "none", "learning"],
)
def test_the_page_says_what_the_loaded_models_know(
    serve: Serve, evaluate: Evaluate, settings: Settings, learns: str, expected: str
) -> None:
    models = serve(settings).get("/v1/models").json()
    said = evaluate(
        f"""import {{ knowsOf }} from "./knows.js";
        console.log(JSON.stringify(knowsOf({json.dumps(models)}, {learns})));"""
    )
    assert expected in said


@pytest.mark.parametrize(
    ("licensed", "wanted"),
    [
        ("true", "It has a licence: its choice is above the agent's own."),
        ("false", "It has no licence: its choice is above the agent's own."),
        ("null", "Nothing has judged its choices beside the agent's own."),
    ],
)
def test_the_page_says_whether_the_q_model_has_a_licence(evaluate: Evaluate, licensed: str, wanted: str) -> None:
    said = evaluate(
        f"""import {{ knowsOf }} from "./knows.js";
        const card = {{ name: "house", source: "checkpoint", default: true, environment: "imported", judge: null,
          licensed: {licensed}, licence: "its choice is above the agent's own" }};
        console.log(JSON.stringify(knowsOf({{ data: [], q_models: [card] }})));"""
    )
    assert wanted in said
    assert "learned from recorded episodes" in said

"""Access: keys, bind address, the operator's routes, origins."""

import json
import re
import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from pydantic import ValidationError
from typer.testing import CliRunner

from qguide.cli import app as cli
from qguide.qnet.errors import ConfigError
from qguide.server.http.keys import KeyFile, create_key, hash_of, read_keys, revoke_key
from qguide.server.settings.settings import SCRIPTED, Settings
from tests.unit.server.conftest import FAKES, Serve

BODY = {"messages": [{"role": "user", "content": "look"}], "candidates": ["a", "b"]}


@pytest.fixture
def keys_file(tmp_path: Path) -> Path:
    return tmp_path / "keys.json"


def bearer(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


def test_the_file_holds_a_hash_and_limits_for_its_owner_alone(keys_file: Path) -> None:
    key = create_key(keys_file, "ada", requests_per_minute=60, tokens_per_day=0)
    assert len(key) > 40
    assert key not in keys_file.read_text()
    (saved,) = json.loads(keys_file.read_text())["keys"]
    assert (saved["sha256"], saved["requests_per_minute"]) == (hash_of(key), 60)
    assert stat.S_IMODE(keys_file.stat().st_mode) == 0o600


def test_a_key_finds_its_caller_and_no_other(keys_file: Path) -> None:
    ada, bob = create_key(keys_file, "ada"), create_key(keys_file, "bob")
    keys = KeyFile(keys_file)
    for key, name in ((ada, "ada"), (bob, "bob")):
        found = keys.find(key)
        assert found is not None
        assert found.name == name
    for wrong in ("", ada[:-1], ada + "x", hash_of(ada)):
        assert keys.find(wrong) is None


def test_a_revoked_key_ends_and_a_new_one_begins_without_a_restart(keys_file: Path) -> None:
    ada = create_key(keys_file, "ada")
    keys = KeyFile(keys_file)
    bob = create_key(keys_file, "bob")
    assert keys.find(bob) is not None
    revoke_key(keys_file, "ada")
    assert keys.find(ada) is None
    keys_file.write_text("{")  # whoever edits by hand locks nobody out
    assert keys.find(bob) is not None


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (None, r"keys\.json .*\(.+\); .*`qguide keys create NAME --file"),
        ("{", r"keys\.json .* top .*JSON"),
        ('{"keys": [{"name": "a"}]}', r"keys\.json .* keys\.0\.sha256:"),
        ('{"keys": []}', r"keys\.json .*API key; .*`qguide keys create NAME --file"),
    ],
)
def test_a_file_that_will_not_do_is_refused_with_the_reason(keys_file: Path, text: str | None, said: str) -> None:
    if text is not None:
        keys_file.write_text(text)
    with pytest.raises(ConfigError, match=said):
        KeyFile(keys_file)


def test_keys_that_are_created_at_once_are_all_kept(keys_file: Path) -> None:
    names = [f"caller-{number}" for number in range(24)]
    with ThreadPoolExecutor(len(names)) as commands:
        keys = list(commands.map(lambda name: create_key(keys_file, name), names))
    assert {key.name for key in read_keys(keys_file).keys} == set(names)
    assert all(read_keys(keys_file).find(key) for key in keys)


def test_a_key_that_is_revoked_while_others_are_created_stays_revoked(keys_file: Path) -> None:
    names = [f"leaving-{number}" for number in range(12)]
    for name in names:
        create_key(keys_file, name)
    with ThreadPoolExecutor(2 * len(names)) as commands:
        revoked = commands.map(lambda name: revoke_key(keys_file, name), names)
        created = commands.map(lambda name: create_key(keys_file, f"coming-{name}"), names)
        assert len({*revoked, *created}) == 1 + len(names)
    assert {key.name for key in read_keys(keys_file).keys} == {f"coming-{name}" for name in names}


def test_a_folder_that_cannot_be_written_is_refused_with_the_reason(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(ConfigError, match=r"keys\.json .*\(.+\); .*writable"):
        create_key(tmp_path / "file" / "keys.json", "ada")


def test_names_are_unique_and_sane(keys_file: Path) -> None:
    create_key(keys_file, "ada")
    with pytest.raises(ConfigError, match="'ada'; revoke"):
        create_key(keys_file, "ada")
    with pytest.raises(ConfigError, match=r"name .*'two words'"):
        create_key(keys_file, "two words")
    with pytest.raises(ConfigError, match="requests_per_minute is -1"):
        create_key(keys_file, "bob", requests_per_minute=-1)
    with pytest.raises(ConfigError, match=r"'eve'; .* ada$"):
        revoke_key(keys_file, "eve")


def test_the_command_prints_a_key_once_lists_and_revokes(keys_file: Path) -> None:
    runner = CliRunner(env={"QGUIDE_KEYS_FILE": str(keys_file)})
    made = runner.invoke(cli, ["keys", "create", "ada", "--admin", "--tokens-per-day", "5000"])
    key = made.output.strip()
    assert (found := read_keys(keys_file).find(key)) is not None
    assert (found.admin, found.tokens_per_day) == (True, 5000)
    listed = runner.invoke(cli, ["keys", "list"]).output
    assert "ada" in listed
    assert "5,000" in listed
    assert key not in listed
    again = runner.invoke(cli, ["keys", "create", "ada"])
    assert (again.exit_code, "already" in again.output) == (1, True)
    assert runner.invoke(cli, ["keys", "revoke", "ada"]).exit_code == 0
    assert read_keys(keys_file).keys == ()


@pytest.mark.parametrize("header", ["Authorization", "X-API-Key"])
def test_a_key_opens_the_door_and_without_one_it_is_401(serve: Serve, keys_file: Path, header: str) -> None:
    key = create_key(keys_file, "ada")
    client = serve(FAKES.model_copy(update={"keys_file": keys_file}))
    given = {header: f"Bearer {key}" if header == "Authorization" else key}
    assert client.post("/v1/score", json=BODY, headers=given).status_code == 200
    for headers in ({}, {header: f"{given[header]}x"}):
        refused = client.post("/v1/score", json=BODY, headers=headers)
        error = refused.json()["error"]
        assert (refused.status_code, error["code"]) == (401, "unauthorized")
        assert refused.headers["www-authenticate"] == "Bearer"
        assert refused.headers["x-request-id"] == error["request_id"]
        assert key not in refused.text


def test_health_is_open_and_metrics_and_docs_are_as_set(serve: Serve, keys_file: Path) -> None:
    key = create_key(keys_file, "ada")
    private = serve(FAKES.model_copy(update={"keys_file": keys_file}))
    public = {"keys_file": keys_file, "public_metrics": True, "public_docs": True}
    open_ = serve(FAKES.model_copy(update=public))
    for path in ("/healthz", "/readyz"):
        assert private.get(path).status_code == 200
    for path in ("/metrics", "/docs", "/openapi.json"):
        assert private.get(path).status_code == 401
        assert private.get(path, headers=bearer(key)).status_code == 200
        assert open_.get(path).status_code == 200
    for path in ("/v1/models", "/healthz/", "/nowhere"):
        assert open_.get(path).status_code == 401


def test_another_key_is_in_the_metrics_only_for_admins_and_prometheus(serve: Serve, keys_file: Path) -> None:
    keys = {name: create_key(keys_file, name) for name in ("ada", "bob")}
    keys["root"] = create_key(keys_file, "root", admin=True)
    keys["prometheus"] = create_key(keys_file, "prometheus", metrics=True)
    client = serve(FAKES.model_copy(update={"keys_file": keys_file}))
    for name in ("ada", "bob"):
        assert client.post("/v1/score", json=BODY, headers=bearer(keys[name])).status_code == 200
    pages = {name: client.get("/metrics", headers=bearer(key)).text for name, key in keys.items()}
    for name, others in {"ada": False, "root": True, "prometheus": True}.items():
        assert 'qguide_key_requests_total{key="ada",status="200"}' in pages[name]
        assert ('key="bob"' in pages[name]) == others, name
    assert client.get("/v1/models", headers=bearer(keys["prometheus"])).status_code == 200

    closed = serve(FAKES.model_copy(update={"keys_file": keys_file, "admin_metrics": True}))
    refused = closed.get("/metrics", headers=bearer(keys["ada"]))
    assert (refused.status_code, refused.json()["error"]["code"]) == (403, "forbidden")
    assert "QGUIDE_ADMIN_METRICS" in refused.json()["error"]["message"]
    for name in ("root", "prometheus"):
        assert 'key="ada"' in closed.get("/metrics", headers=bearer(keys[name])).text
    with pytest.raises(ValidationError, match="public_metrics and admin_metrics"):
        Settings(policy=SCRIPTED, public_metrics=True, admin_metrics=True)
    with pytest.raises(ValidationError, match="without API keys"):
        Settings(policy=SCRIPTED, admin_metrics=True)


def test_the_operators_routes_want_an_admins_key(serve: Serve, keys_file: Path) -> None:
    plain, admin = create_key(keys_file, "ada"), create_key(keys_file, "root", admin=True)
    settings = Settings(
        policy=SCRIPTED, q_models={"demo": SCRIPTED, "other": SCRIPTED}, admin=True, keys_file=keys_file, host="0.0.0.0"
    )
    client = serve(settings)
    move = {"alias": "default", "to": "other"}
    refused = client.post("/v1/models/alias", json=move, headers=bearer(plain))
    assert (refused.status_code, refused.json()["error"]["code"]) == (403, "forbidden")
    assert client.post("/v1/models/alias", json=move).status_code == 401
    assert client.post("/v1/models/alias", json=move, headers=bearer(admin)).status_code == 200


@pytest.mark.parametrize("host", ["0.0.0.0", "192.168.0.1", "::", "example.org", ""])
def test_another_address_than_loopback_wants_keys_or_insecure(host: str, keys_file: Path) -> None:
    with pytest.raises(ValidationError, match=r"`qguide keys create .* QGUIDE_KEYS_FILE=.* --insecure"):
        Settings(policy=SCRIPTED, host=host)
    assert Settings(policy=SCRIPTED, host=host, insecure=True).host == host
    assert Settings(policy=SCRIPTED, host=host, keys_file=keys_file).host == host


def test_serve_says_why_it_does_not_bind(keys_file: Path) -> None:
    refused = CliRunner().invoke(cli, ["serve", "--host", "0.0.0.0"])
    assert refused.exit_code == 2
    assert "error: host is '0.0.0.0', which other machines can reach" in refused.output
    scripted = ["serve", "--policy", "scripted", "--q-model", "scripted"]
    runner = CliRunner(env={"QGUIDE_KEYS_FILE": str(keys_file)})
    no_file = runner.invoke(cli, [*scripted, "--host", "0.0.0.0"])
    assert no_file.exit_code == 1
    assert "cannot be read" in no_file.output


def test_no_page_may_call_but_those_of_named_origins(serve: Serve, keys_file: Path) -> None:
    key = create_key(keys_file, "ada", requests_per_minute=60)
    page = {"Origin": "https://agents.example"}
    asks = page | {"Access-Control-Request-Method": "POST"}
    closed = serve(FAKES)
    assert closed.options("/v1/score", headers=asks).status_code == 405
    assert "access-control-allow-origin" not in closed.get("/v1/models", headers=page).headers
    named = {"cors_origins": ("https://agents.example",), "keys_file": keys_file, "replica": "one"}
    client = serve(FAKES.model_copy(update=named))
    assert client.options("/v1/score", headers=asks).status_code == 200
    allowed = client.get("/v1/models", headers=page | bearer(key))
    assert allowed.headers["access-control-allow-origin"] == "https://agents.example"
    shown = allowed.headers["access-control-expose-headers"].lower().split(", ")
    limits = {name for name in allowed.headers if name.startswith(("ratelimit-", "x-qguide-"))}
    assert limits == {"ratelimit-limit", "ratelimit-remaining", "ratelimit-reset", "x-qguide-replica"}
    assert limits | {"retry-after", "x-request-id"} <= set(shown)
    other = client.get("/v1/models", headers=bearer(key) | {"Origin": "https://evil.example"})
    assert "access-control-allow-origin" not in other.headers


@pytest.mark.parametrize("origin", ["*", "agents.example", "https://agents.example/page"])
def test_an_origin_is_named_exactly(origin: str) -> None:
    with pytest.raises(ValidationError, match=rf"cors_origins\.0\n.*'{re.escape(origin)}' .*https://host:port"):
        Settings(cors_origins=(origin,))

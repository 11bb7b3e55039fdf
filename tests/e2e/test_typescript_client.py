"""The TypeScript client, built from a copy by npm, against real servers.

Skipped where there is no Node 20, no npm, or no registry to take the compiler from.
"""

import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from queue import Queue
from typing import Any

import httpx
import pytest
from fastapi import FastAPI, Request
from fastapi.responses import HTMLResponse
from fastapi.staticfiles import StaticFiles
from qguide_client import errors

from qguide.server.app import create_app
from qguide.server.chat.fake_openai import FakeUpstream
from qguide.server.http.error_table import HTTP_CODES, TABLE
from qguide.server.http.keys import create_key
from qguide.server.settings.remote_models import Upstream
from qguide.server.settings.settings import SCRIPTED, Settings
from tests.support.serving import ROOT, serving_app
from tools.client_types.typescript import SCHEMAS, typescript_schemas
from tools.reference_pages.api import api_document

SOURCE = ROOT / "clients" / "typescript"
CLIENT_PAGE = ROOT / "docs" / "connect" / "typescript-client.md"
IGNORED = shutil.ignore_patterns("node_modules", "dist", "build")
OLDEST_NODE = 20
OPENAI = "openai@6.49.0"
"""The last that Node 20 runs."""
STEP_S = 600
NO_NETWORK = re.compile(r"EAI_AGAIN|ECONNREFUSED|ECONNRESET|ENOTFOUND|ENETUNREACH|ETIMEDOUT|E5\d\d")
CHROMIUM_FLAGS = ("--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking")
CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")

pytestmark = pytest.mark.slow

TASK = {"role": "user", "content": "You see a desk 1. Your task is to: find the mug."}
TOOLS = [{"type": "function", "function": {"name": "look"}}, {"type": "custom", "custom": {"name": "shell"}}]
README_BLOCK = re.compile(r"^```ts\n(.*?)^```", re.DOTALL | re.MULTILINE)
THERE = "http://127.0.0.1:8000"
PRELUDE = """
const environment = {
  actions: [] as string[],
  reward: 0.5,
  get done(): boolean { return this.actions.length === 3; },
  reset(): string { return "You see a desk 1. Your task is to: find the mug."; },
  step(action: string): string { this.actions.push(action); return "Nothing happens."; },
};
"""
EPILOGUE = """
console.log(JSON.stringify({ actions: environment.actions, id: episode.episodeId }));
"""


@dataclass(frozen=True)
class Servers:
    """Two of them, both with a fake upstream as their policy.

    Attributes:
        url: of one without keys.
        guarded_url: of one that wants `key`.
    """

    url: str
    guarded_url: str
    key: str


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Servers]:
    keys_file = tmp_path_factory.mktemp("keys") / "keys.json"
    key = create_key(keys_file, "ada")
    with serving_app(FakeUpstream().app()) as behind:
        demo = Upstream.model_validate({"url": f"{behind}/v1", "model": "fake"})
        settings = Settings(
            policy="demo",
            upstreams={"demo": demo},
            q_models={"q@1": SCRIPTED},
            unknown_models="error",
            max_body_bytes=4 * 1024**2,
        )
        guarded = settings.model_copy(update={"keys_file": keys_file})
        with serving_app(create_app(settings)) as url, serving_app(create_app(guarded)) as guarded_url:
            yield Servers(url, guarded_url, key)


@dataclass(frozen=True)
class Package:
    """A copy of the client, installed and built."""

    folder: Path

    def run(self, *command: str, **variables: str) -> str:
        """Output of a command in the package's folder."""
        done = _run(self.folder, *command, **variables)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def compile(self, *files: str, emit: bool) -> None:
        """Compile files that the package's own tests leave out, as its tests are."""
        config = {
            "extends": "./tsconfig.test.json",
            "compilerOptions": {"noEmit": not emit},
            "include": files,
            "exclude": [],
        }
        (self.folder / "tsconfig.more.json").write_text(json.dumps(config))
        self.run("npx", "tsc", "--project", "tsconfig.more.json")


def _run(folder: Path, *command: str, **variables: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        command, cwd=folder, env=os.environ | variables, capture_output=True, text=True, timeout=STEP_S, check=False
    )


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Package:
    if shutil.which("node") is None or shutil.which("npm") is None:
        pytest.skip("no node and npm on PATH")
    version = subprocess.run(["node", "--version"], capture_output=True, text=True, check=True)
    if int(version.stdout.lstrip("v").partition(".")[0]) < OLDEST_NODE:
        pytest.skip(f"node is {version.stdout.strip()}; the client needs {OLDEST_NODE}")
    folder = tmp_path_factory.mktemp("typescript") / "client"
    shutil.copytree(SOURCE, folder, ignore=IGNORED)
    quiet = ("--prefer-offline", "--ignore-scripts", "--no-audit", "--no-fund", "--fetch-retries=1")
    for command in (["ci"], ["install", "--no-save", OPENAI]):
        done = _run(folder, "npm", *command, *quiet)
        if done.returncode and NO_NETWORK.search(done.stderr):
            pytest.skip("npm's registry cannot be reached, and the compiler comes from there")
        assert done.returncode == 0, done.stderr
    built = Package(folder)
    built.run("npm", "run", "build")
    return built


def test_its_own_tests_pass_against_a_real_server(package: Package, servers: Servers) -> None:
    told = package.run("npm", "test", QGUIDE_URL=servers.guarded_url, QGUIDE_KEY=servers.key)
    assert "QGUIDE_URL names no server" not in told, "the tests of every question were skipped"


def test_its_types_are_generated_from_the_servers_document(package: Package) -> None:
    written = (SOURCE / SCHEMAS).read_text()
    assert written == typescript_schemas(api_document(), package.folder), "run `make client-types`"


def test_completions_of_a_server_have_the_clients_types(package: Package, servers: Servers) -> None:
    (package.folder / "test" / "answers.ts").write_text(_answers(servers.url))
    package.compile("test/answers.ts", emit=False)


def _answers(url: str) -> str:
    """Completions of a server as values of the client's types: a field that is none of the type's
    does not compile, nor does one that is missing."""
    asked: list[dict[str, Any]] = [
        {"qguide": {"num_candidates": 3, "return_candidates": True, "episode_id": "e"}},
        {"tools": TOOLS, "n": 2, "qguide": {"num_candidates": 2}},
        {"seed": 1, "reasoning_effort": "low", "logprobs": True},
    ]
    wholes: list[Any] = []
    chunks: list[Any] = []
    for body in asked:
        whole = httpx.post(f"{url}/v1/chat/completions", json={"messages": [TASK], **body})
        wholes.append(whole.raise_for_status().json())
        streamed = {"stream": True, "stream_options": {"include_usage": True}, **body}
        text = httpx.post(f"{url}/v1/chat/completions", json={"messages": [TASK], **streamed}).text
        events = re.findall(r"^data: (\{.*)$", text, re.MULTILINE)
        chunks.extend(json.loads(one) for one in events)
    assert any(chunk.get("usage") for chunk in chunks)
    return (
        'import type { ChatChunk, ChatCompletion } from "qguide-client";\n'
        f"export const COMPLETIONS: ChatCompletion[] = {json.dumps(wholes)};\n"
        f"export const CHUNKS: ChatChunk[] = {json.dumps(chunks)};\n"
    )


def test_an_error_has_the_same_class_as_in_python(package: Package) -> None:
    refusals = {(500, "internal_error"), (422, "malformed_body"), (418, ""), *TABLE.values()}
    refusals |= {*HTTP_CODES.items(), *((400, code) for code in errors.OF_CODE)}
    asked = sorted(refusals | {(status, "") for status in errors.OF_STATUS})
    program = """
      import { refused } from "./dist/errors.js";
      const asked = JSON.parse(process.env.ASKED);
      const told = asked.map(([status, code]) => refused("", { status, code }));
      console.log(JSON.stringify(told.map((error) => [error.name, error.constructor.name])));
    """
    told = package.run("node", "--input-type=module", "--eval", program, ASKED=json.dumps(asked))
    expected = [errors.class_of(*one).__name__ for one in asked]
    assert json.loads(told) == [[name, name] for name in expected]


@pytest.fixture(scope="module")
def programs(package: Package, servers: Servers) -> Path:
    """Folder with the compiled examples and the code of README and page."""
    for name, text in (("client", SOURCE / "README.md"), ("main", CLIENT_PAGE)):
        (block,) = README_BLOCK.findall(text.read_text())
        assert THERE in block
        program = PRELUDE + block.replace(THERE, servers.url) + EPILOGUE
        (package.folder / "examples" / f"readme_{name}.ts").write_text(program)
    package.compile("examples", emit=True)
    return package.folder / "build" / "examples"


@pytest.mark.parametrize("name", ["client", "main"])
def test_what_the_readmes_show_plays_an_episode_to_its_end(
    name: str, package: Package, programs: Path, servers: Servers
) -> None:
    told = json.loads(package.run("node", str(programs / f"readme_{name}.js")).splitlines()[-1])
    assert len(told["actions"]) == 3
    path = f"{servers.url}/v1/episodes/{told['id']}/outcome"
    assert httpx.post(path, json={"reward": 0.5}).json()["steps"] == 3
    assert httpx.post(path, json={"reward": 0.0}).status_code == 409


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("act-loop", "On the desk 1, you see a mug 1. Reward 1 after 1 steps.\n"),
        ("rerank", "chosen: Action: go to desk 1\n"),
    ],
)
def test_the_examples_do_what_they_say(
    name: str, told: str, package: Package, programs: Path, servers: Servers
) -> None:
    assert package.run("node", str(programs / f"{name}.js"), servers.url).endswith(told)


def test_openais_sdk_needs_nothing_but_another_base_url(package: Package, programs: Path, servers: Servers) -> None:
    told = package.run("node", str(programs / "openai-sdk.js"), servers.url)
    assert told.count("Action: go to desk 1") == 2, "whole and streamed"


PAGE = """<!doctype html><title>page</title><script type="module">
import { QGuide, UnauthorizedError } from "./dist/index.js";
const told = [];
const task = [{ role: "user", content: "You see a desk 1. Your task is to: find the mug." }];
try {
  const client = new QGuide("URL", { apiKey: "KEY" });
  told.push((await client.act(task, { num_candidates: 3 }, { deadlineMs: 60000 })).action);
  let text = "";
  for await (const chunk of client.chatStream(task)) text += chunk.choices[0]?.delta.content ?? "";
  told.push(text);
  const error = await new QGuide("URL").models().catch((error) => error);
  told.push(error instanceof UnauthorizedError && error.requestId.length);
} catch (error) {
  told.push(String(error));
}
await fetch("/told", { method: "POST", body: JSON.stringify(told) });
</script>"""


@pytest.mark.skipif(CHROMIUM is None, reason="no chromium on PATH")
def test_a_page_of_another_origin_asks_from_a_browser(package: Package, tmp_path: Path) -> None:
    key = create_key(tmp_path / "keys.json", "page")
    page: dict[str, str] = {}
    heard: Queue[Any] = Queue()

    async def hear(request: Request) -> None:
        heard.put(await request.json())

    pages = FastAPI()
    pages.mount("/dist", StaticFiles(directory=package.folder / "dist"))
    pages.add_api_route("/", lambda: HTMLResponse(page["text"]), response_class=HTMLResponse)
    pages.add_api_route("/told", hear, methods=["POST"])
    with serving_app(pages) as origin:
        settings = Settings(
            policy=SCRIPTED, q_models={"q@1": SCRIPTED}, keys_file=tmp_path / "keys.json", cors_origins=(origin,)
        )
        with serving_app(create_app(settings)) as url:
            page["text"] = PAGE.replace("URL", url).replace("KEY", key)
            command = [str(CHROMIUM), *CHROMIUM_FLAGS, f"--user-data-dir={tmp_path}", origin]
            quiet = subprocess.DEVNULL
            with subprocess.Popen(command, stdout=quiet, stderr=quiet) as browser:
                try:
                    acted, streamed, request_id_length = heard.get(timeout=STEP_S)
                finally:
                    browser.terminate()
    assert acted == streamed == FakeUpstream().replies[2]
    assert request_id_length == 32, "the server's own id can be read across origins"


def test_the_package_can_be_required(package: Package, servers: Servers) -> None:
    program = """
      const { QGuide, UnauthorizedError } = require("qguide-client");
      const failed = new QGuide(process.env.URL).models().catch((error) => error);
      failed.then((error) => console.log(error instanceof UnauthorizedError));
    """
    told = package.run("node", "--input-type=commonjs", "--eval", program, URL=servers.guarded_url)
    assert told == "true\n"
    (package.folder / "test" / "required.cts").write_text(
        'type Client = typeof import("qguide-client");\n'
        'const { QGuide } = require("qguide-client") as Client;\n'
        "new QGuide().models().then((models) => models.data[0]?.id.length);\n"
    )
    package.compile("test/required.cts", emit=False)


def test_every_example_fits_on_a_screen() -> None:
    for path in (SOURCE / "examples").glob("*.ts"):
        assert len(path.read_text().splitlines()) < 45, path.name


def test_the_package_holds_what_is_needed_and_nothing_else(package: Package) -> None:
    (told,) = json.loads(package.run("npm", "pack", "--dry-run", "--json", "--ignore-scripts"))
    held = {file["path"] for file in told["files"]}
    modules = {path.stem for path in (SOURCE / "src").glob("*.ts")}
    built = {f"dist/{name}{end}" for name in modules for end in (".js", ".d.ts")}
    maps = {f"dist/{name}{end}.map" for name in modules for end in (".js", ".d.ts")}
    sources = {f"src/{name}.ts" for name in modules}
    required = {f"dist/cjs/{name}{end}" for name in modules for end in (".js", ".d.ts")}
    required.add("dist/cjs/package.json")
    assert held == {"LICENSE", "README.md", "package.json", *built, *maps, *sources, *required}

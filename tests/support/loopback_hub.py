"""A model hub on loopback: the routes of the Hugging Face hub that a download asks for."""

import hashlib
import json
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib import reload
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import huggingface_hub.constants

from tests.support.alone import run_forked
from tests.support.serving import ROOT


@dataclass
class LoopbackHub:
    """Models by name and branch, and what was asked for.

    Attributes:
        revisions: folder by (model, revision); a commit is a revision too.
        commits: commit by (model, revision).
        served: paths of the files that were downloaded.
    """

    revisions: dict[tuple[str, str], Path] = field(default_factory=dict)
    commits: dict[tuple[str, str], str] = field(default_factory=dict)
    served: list[str] = field(default_factory=list)
    url: str = ""

    def publish(self, model: str, folder: Path, *, revision: str = "main") -> str:
        """Serve a folder as a revision; returns its commit."""
        commit = hashlib.sha1(f"{model}@{revision}:{folder}".encode()).hexdigest()
        for name in (revision, commit):
            self.revisions[model, name] = folder
            self.commits[model, name] = commit
        return commit


@contextmanager
def running_hub() -> Iterator[LoopbackHub]:
    """A hub on a free port of this machine."""
    hub = LoopbackHub()
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(_Handler, hub))
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    hub.url = f"http://127.0.0.1:{server.server_port}"
    try:
        yield hub
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def run_with_hub(hub: LoopbackHub, home: Path, program: str, *arguments: str, offline: bool = False) -> str:
    """Output of a program of its own process for which the hub is on loopback.

    Raises:
        AssertionError: it failed.
    """
    place = {"HF_ENDPOINT": hub.url, "HF_HOME": str(home), "HF_HUB_OFFLINE": str(int(offline))}
    direct = {"NO_PROXY": "127.0.0.1", "HF_HUB_DISABLE_XET": "1"}
    code, output = run_forked(_run, [program, *arguments], cwd=ROOT, variables=place | direct)
    assert code == 0, output
    return output


def _run(arguments: list[str]) -> None:
    reload(huggingface_hub.constants)  # it has read the variables at its import
    sys.argv = ["-c", *arguments[1:]]
    exec(arguments[0], {"__name__": "__main__"})


class _Handler(BaseHTTPRequestHandler):
    def __init__(self, hub: LoopbackHub, *args: Any) -> None:
        self._hub = hub
        super().__init__(*args)

    def do_HEAD(self) -> None:
        self._answer(with_body=False)

    def do_GET(self) -> None:
        self._answer(with_body=True)

    def log_message(self, *_: object) -> None:
        """Say nothing."""

    def _answer(self, *, with_body: bool) -> None:
        parts = unquote(urlsplit(self.path).path).strip("/").split("/")
        match parts:
            case ["api", "models", owner, name, "revision", revision]:
                self._send_json(self._info(f"{owner}/{name}", revision))
            case ["api", "models", owner, name, "tree", revision]:
                self._send_json(self._tree(f"{owner}/{name}", revision))
            case [owner, name, "resolve", revision, file]:
                self._send_file(f"{owner}/{name}", revision, file, with_body=with_body)
            case _:
                self._send_json(None)

    def _info(self, model: str, revision: str) -> object:
        folder = self._hub.revisions.get((model, revision))
        if folder is None:
            return None
        siblings = [{"rfilename": file.name} for file in sorted(folder.iterdir())]
        sha = self._hub.commits[model, revision]
        return {"id": model, "modelId": model, "sha": sha, "siblings": siblings, "tags": []}

    def _tree(self, model: str, revision: str) -> object:
        folder = self._hub.revisions.get((model, revision))
        if folder is None:
            return None
        return [
            {"type": "file", "path": file.name, "size": file.stat().st_size, "oid": _etag(file)}
            for file in sorted(folder.iterdir())
        ]

    def _send_file(self, model: str, revision: str, name: str, *, with_body: bool) -> None:
        folder = self._hub.revisions.get((model, revision))
        if folder is None or not (folder / name).is_file():
            self._send_json(None)
            return
        content = (folder / name).read_bytes()
        headers = {
            "ETag": f'"{_etag(folder / name)}"',
            "X-Repo-Commit": self._hub.commits[model, revision],
            "Content-Type": "application/octet-stream",
        }
        self._send(200, content, headers, with_body=with_body)
        if with_body:
            self._hub.served.append(name)

    def _send_json(self, content: object) -> None:
        status = 404 if content is None else 200
        headers = {"Content-Type": "application/json"}
        if content is None:
            headers["X-Error-Code"] = "RepoNotFound"
            content = {"error": "Repository not found"}
        body = json.dumps(content).encode()
        self._send(status, body, headers, with_body=self.command == "GET")

    def _send(self, status: int, content: bytes, headers: Mapping[str, str], *, with_body: bool) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if with_body:
            self.wfile.write(content)


def _etag(file: Path) -> str:
    return hashlib.sha1(file.read_bytes()).hexdigest()

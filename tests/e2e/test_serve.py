"""`qguide serve` as an operator runs it: the README's request, a game, and a clean end."""

import io
import json
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest
from rich.console import Console

from training.jobs.play import PlayConfig, run_play
from training.tasks import EnvironmentConfig

ROOT = Path(__file__).parents[2]
START_S = 120
END_S = 30


@dataclass(frozen=True)
class Server:
    """A running process, its address and where its stderr goes."""

    process: "subprocess.Popen[bytes]"
    url: str
    log: Path


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    """A process with the scripted models on a free port."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "qguide", "serve", "--port", str(port)]
    command += ["--policy", "scripted", "--q-model", "scripted"]
    log = tmp_path / "stderr.log"
    with (
        log.open("wb") as stderr,
        subprocess.Popen(
            command, cwd=ROOT, env=os.environ | {"OMP_NUM_THREADS": "1"}, stderr=stderr
        ) as process,
    ):
        try:
            started = Server(process, f"http://127.0.0.1:{port}", log)
            _wait_until_ready(started)
            yield started
        finally:
            process.kill()


def _wait_until_ready(server: Server) -> None:
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline:
        if server.process.poll() is not None:
            pytest.fail(f"the server ended: {server.log.read_text()}")
        try:
            if httpx.get(f"{server.url}/readyz").status_code == 200:
                return
        except httpx.TransportError:
            time.sleep(0.2)
    pytest.fail(f"the server was not ready after {START_S} s: {server.log.read_text()}")


def _send_the_readmes_curl(server: Server) -> httpx.Response:
    """What the README tells a newcomer to send, to this server's port."""
    block = re.search(r"```sh\n(curl .*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    assert block, "the README shows no curl"
    curl, _, url, _, header, _, body = shlex.split(block[1])
    assert curl == "curl"
    name, _, value = header.partition(": ")
    path = httpx.URL(url).path
    return httpx.post(f"{server.url}{path}", content=body.encode(), headers={name: value})


def test_serve_answers_the_readme_plays_a_game_and_ends_on_sigterm(server: Server) -> None:
    answer = _send_the_readmes_curl(server).raise_for_status().json()
    q_values = [candidate["q_value"] for candidate in answer["candidates"]]
    assert len(q_values) == 5
    assert q_values[answer["chosen"]] == max(q_values) > min(q_values)

    shown = io.StringIO()
    game = EnvironmentConfig(first_seed=7, count=1)
    config = PlayConfig(game, url=server.url, num_candidates=3, max_steps=2)
    assert run_play(config, console=Console(file=shown, width=100)) == 0.0
    assert "Your task is to" in shown.getvalue()
    assert shown.getvalue().count("▶") == 2

    server.process.send_signal(signal.SIGTERM)
    # uvicorn finishes what runs, then dies of the signal it was sent, as supervisors expect.
    assert server.process.wait(END_S) in (0, -signal.SIGTERM)
    greeting, *lines = server.log.read_text().splitlines()
    assert greeting.startswith("scripted with default on http://127.0.0.1:")
    requests = [json.loads(line) for line in lines if line.startswith("{")]
    assert [r["status"] for r in requests if r["route"] == "/v1/act"] == [200] * 3
    assert "Traceback" not in "".join(lines)
    with pytest.raises(httpx.ConnectError):
        httpx.get(f"{server.url}/healthz")

"""`qguide serve` as an operator runs it: the README's request, a game, and a clean end."""

import io
import json
import re
import shlex
import signal
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from rich.console import Console

from qguide.training.environments.alfworld.bundle import AlfWorldConfig
from qguide.training.jobs.play import PlayConfig, run_play
from tests.support.serving import ROOT, Serving, serving_process

END_S = 30


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Serving]:
    """A process with the scripted models on a free port."""
    with serving_process(tmp_path, forked=False) as started:
        yield started


def _send_the_readmes_curl(server: Serving) -> httpx.Response:
    """The request that the README tells a newcomer to send, to this server's port."""
    block = re.search(r"```sh\n(curl .*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    assert block, "the README shows no curl"
    curl, _, url, _, header, _, body = shlex.split(block[1])
    assert curl == "curl"
    name, _, value = header.partition(": ")
    path = httpx.URL(url).path
    return httpx.post(f"{server.url}{path}", content=body.encode(), headers={name: value})


def test_serve_answers_the_readme_plays_a_game_and_ends_on_sigterm(server: Serving) -> None:
    answer = _send_the_readmes_curl(server).raise_for_status().json()
    q_values = [candidate["q_value"] for candidate in answer["candidates"]]
    assert len(q_values) == 5
    assert q_values[answer["chosen"]] == max(q_values) > min(q_values)

    shown = io.StringIO()
    game = AlfWorldConfig(first_seed=7, count=1)
    config = PlayConfig(game, url=server.url, num_candidates=3, max_steps=2)
    assert run_play(config, console=Console(file=shown, width=100)) == 0.0
    assert "Your task is to" in shown.getvalue()
    assert shown.getvalue().count("▶") == 2

    server.process.send_signal(signal.SIGTERM)
    # uvicorn finishes what runs, then dies of the signal it was sent, as supervisors expect.
    assert server.process.wait(END_S) in (0, -signal.SIGTERM)
    greeting, *lines = server.log.read_text().splitlines()
    assert greeting.startswith("scripted with scripted on http://127.0.0.1:")
    requests = [json.loads(line) for line in lines if line.startswith("{")]
    assert [r["status"] for r in requests if r["route"] == "/v1/act"] == [200] * 3
    assert "Traceback" not in "".join(lines)
    with pytest.raises(httpx.ConnectError):
        httpx.get(f"{server.url}/healthz")

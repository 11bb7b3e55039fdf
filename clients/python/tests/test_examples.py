"""The examples do what they say, against a real server."""

import os
import subprocess
import sys
from pathlib import Path

EXAMPLES = Path(__file__).parents[1] / "examples"
CLIENT = Path(__file__).parents[1] / "src"
MAX_LINES = 40


def output(name: str, url: str) -> str:
    """Output of an example, as its user starts it: the server logs elsewhere."""
    command = [sys.executable, str(EXAMPLES / name), url]
    environment = os.environ | {"PYTHONPATH": str(CLIENT)}  # the suite does not install it
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


def test_the_act_loop_finds_the_mug(url: str) -> None:
    assert "On the desk 1, you see a mug 1. Reward 1.0." in output("act_loop.py", url)


def test_the_reranker_chooses_the_best_candidate(url: str) -> None:
    assert "chosen: Action: go to desk 1" in output("rerank.py", url)


def test_the_openai_sdk_needs_nothing_but_another_base_url(url: str) -> None:
    printed = output("openai_sdk.py", url)
    assert printed.count("Action: go to desk 1") == 2, "whole and streamed"


def test_every_example_fits_on_a_screen() -> None:
    for path in EXAMPLES.glob("*.py"):
        assert len(path.read_text().splitlines()) < MAX_LINES, path.name

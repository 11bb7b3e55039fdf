"""The examples do what they say, against a real server."""

import runpy
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[1] / "examples"
MAX_LINES = 40


def run(name: str, url: str) -> None:
    runpy.run_path(str(EXAMPLES / name))["main"](url)


def test_the_act_loop_finds_the_mug(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    run("act_loop.py", url)
    assert "On the desk 1, you see a mug 1. Reward 1.0." in capsys.readouterr().out


def test_the_reranker_chooses_the_best_candidate(
    url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    run("rerank.py", url)
    assert "chosen: Action: go to desk 1" in capsys.readouterr().out


def test_the_openai_sdk_needs_nothing_but_another_base_url(
    url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    run("openai_sdk.py", url)
    # The server logs to the same place, at any time.
    assert capsys.readouterr().out.count("Action: go to desk 1") == 2, "whole and streamed"


def test_every_example_fits_on_a_screen() -> None:
    for path in EXAMPLES.glob("*.py"):
        assert len(path.read_text().splitlines()) < MAX_LINES, path.name

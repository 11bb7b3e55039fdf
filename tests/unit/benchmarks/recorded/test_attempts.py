"""Recorded attempts, replayed against a running server that tells which go on."""

import json
from pathlib import Path

from rich.console import Console

from benchmarks.recorded.attempts import ReplayAttemptsConfig, run_replay_attempts
from qguide.training.data.runs import RunFolder
from tests.support.recordings.llms import mint_episodes

MODELS = ("gpt-a", "gpt-b", "claude-a", "claude-b", "llama-a", "llama-b")


def test_a_running_server_lets_attempts_go_on_that_are_like_successes(tmp_path: Path) -> None:
    file = tmp_path / "mint.jsonl"
    mint_episodes(file, MODELS, tasks=12)
    config = ReplayAttemptsConfig(source=(file,), output=tmp_path / "replayed", turns=1, candidates=4, draws=3, folds=2)
    with (tmp_path / "shown").open("w") as shown:
        means = run_replay_attempts(config, console=Console(file=shown))
    [told] = map(json.loads, RunFolder(config.output).metrics.read_text().splitlines())
    assert told["tasks"] == 6
    assert [row["go_on"] for row in told["stopping"]] == [1, 2, 3, 4]
    every = told["stopping"][-1]
    assert every["server"] == every["random"]  # all go on, whoever was asked
    assert means["server"] >= means["random"]
    assert "server" in (tmp_path / "shown").read_text()

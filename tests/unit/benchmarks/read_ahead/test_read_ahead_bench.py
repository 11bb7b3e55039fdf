"""A short read-ahead benchmark: both servers give the same Q, and one of them has read before."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from benchmarks.commands.app import app
from benchmarks.read_ahead.read_ahead import ReadAheadRun


@pytest.mark.slow
def test_both_servers_agree_and_every_step_is_kept(tmp_path: Path) -> None:
    output = tmp_path / "read_ahead.json"
    options = ("--shape", "tiny", "--history-tokens", "300", "--delay-s", "0.2", "--repeats", "2")
    done = CliRunner().invoke(app, ["read-ahead", *options, "--output", str(output)])
    assert done.exit_code == 0, done.output
    run = ReadAheadRun.model_validate_json(output.read_text())
    assert run.complete
    assert len(run.steps) == len(run.differences) == 2
    assert max(run.differences) < 1e-3
    assert all(step.ahead_total_ms >= 200 for step in run.steps)
    said = " ".join(done.output.split())
    assert "300 new tokens, 5 candidates of 48, an upstream of 200 ms" in said
    assert "× the candidates' own time, goal 1.2" in said

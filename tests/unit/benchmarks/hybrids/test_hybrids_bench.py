"""A short benchmark of hybrids: every trunk has its times, in every round."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from benchmarks.commands.app import app
from benchmarks.hybrids.hybrids import HybridsRun

SHORT = ["layers=4", "hidden=64", "history_tokens=16", "candidates=2", "candidate_tokens=2", "steps=2"]


@pytest.mark.filterwarnings("ignore")
def test_every_trunk_is_measured_in_every_round(tmp_path: Path) -> None:
    output = tmp_path / "hybrids.json"
    sizes = [word for option in SHORT for word in ("--set", option)]
    done = CliRunner().invoke(app, ["hybrids", "--rounds", "2", *sizes, "--output", str(output)])
    assert done.exit_code == 0, done.output
    run = HybridsRun.model_validate_json(output.read_text())
    assert [row.name for row in run.rows] == ["llama", "lfm2", "granitemoehybrid", "qwen3_5_text"]
    assert all(len(row.warm_s) == len(row.tree_s) == 2 for row in run.rows)
    assert run.tree_tokens == 16 + 2 * (2 * 2 + 2)
    assert run.warm_ratio(run.rows[0]) == run.tree_ratio(run.rows[0]) == 1
    assert "goal for a warm step, 1.3 × attention's" in " ".join(done.output.split())


def test_a_trunk_that_transformers_lacks_is_named(tmp_path: Path) -> None:
    output = tmp_path / "hybrids.json"
    given = ["hybrids", "--trunks", "no_such", "--output", str(output)]
    done = CliRunner().invoke(app, given)
    assert done.exit_code
    assert "trunks='no_such' is no architecture" in " ".join(done.output.split())

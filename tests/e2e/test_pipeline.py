"""`qguide run` over real jobs with tiny models, on corridors."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from qguide.cli import app
from qguide.training.environments.corridor import CorridorConfig
from tests.support import worker_jobs
from tests.support.corridors import write_solutions
from tests.support.serving import ROOT

FILES = {
    "sft": """
trajectories = ["runs/expert"]
output = "runs/sft"
[architecture]
vocab_size = 320
hidden_size = 32
intermediate_size = 64
layers = 2
heads = 2
context = 512
[optimization]
lr = 0.01
epochs = 1
batch_tokens = 2048
""",
    "label": """
trees = ["runs/trees"]
output = "runs/labels"
""",
    "train_qnet": """
labels = ["runs/labels"]
trunk = "runs/sft/checkpoint"
output = "runs/qnet"
head_width = 16
validation_fraction = 0.3
[optimization]
lr = 0.003
epochs = 1
""",
    "pipeline": """
output = "runs/pipeline"
slots = 2
[stages.labels]
job = "label"
config = "label.toml"
[stages.qnet]
job = "train-qnet"
config = "train_qnet.toml"
""",
}


def run(*more: str, pipeline: str = "pipeline.toml") -> Result:
    return CliRunner().invoke(app, ["run", pipeline, *more], catch_exceptions=False)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    write_solutions(tmp_path / "runs", count=20)
    worker_jobs.run(worker_jobs.explore(tmp_path / "runs/trees", environment=CorridorConfig(count=4)))
    for name, text in FILES.items():
        (tmp_path / f"{name}.toml").write_text(text)
    return tmp_path


def test_a_pipeline_runs_once_and_is_refused_after_a_change(folder: Path) -> None:
    assert CliRunner().invoke(app, ["sft", "--config", "sft.toml"]).exit_code == 0
    result = run()
    assert result.exit_code == 0, result.output
    assert (folder / "runs/qnet/checkpoint/manifest.json").is_file()
    summary = json.loads((folder / "runs/pipeline/summary.json").read_text())
    assert list(summary["stages"]) == ["labels", "qnet"]
    assert all(stage["cpu_s"] > 0 for stage in summary["stages"].values())
    log = (folder / "runs/pipeline/logs/qnet.log").read_text()
    assert log.startswith("$ qguide train-qnet --config train_qnet.toml")

    again = run()
    assert again.exit_code == 0, again.output
    assert again.output.count("not run again") == 2

    changed = run("--set", "qnet.head_width=8")
    assert changed.exit_code == 2
    assert "stage qnet has finished, but since then head_width was 16 and is 8" in changed.output


def test_a_failed_stage_is_named_with_the_end_of_its_log(folder: Path) -> None:
    (folder / "runs/bad").mkdir()
    (folder / "runs/bad/rows.jsonl").write_text('{"task_id": 1}\n')
    (folder / "short.toml").write_text("""
output = "runs/pipeline"
[stages.labels]
job = "label"
config = "label.toml"
set = ["trees=['runs/bad']"]
[stages.more]
job = "label"
config = "label.toml"
set = ["trees=['runs/labels']", "output=runs/more"]
""")
    result = run(pipeline="short.toml")
    assert result.exit_code == 1
    assert "stage labels ended with status 1; the last lines of" in result.output
    assert "runs/bad/rows.jsonl, line 1: task_id" in result.output
    assert "more blocked" in result.output


def test_a_dry_run_starts_nothing(folder: Path) -> None:
    result = run("--dry-run")
    assert result.exit_code == 0
    assert "qnet: qguide train-qnet --config train_qnet.toml" in result.output
    assert "needs   labels" in result.output
    assert not (folder / "runs/pipeline").exists()

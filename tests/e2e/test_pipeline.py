"""`qguide run` over real jobs with tiny models, on corridors."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from qguide.cli import app
from qguide.training.environments.corridor import CorridorConfig
from tests.support import worker_jobs
from tests.support.serving import ROOT

FILES = {
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
    worker_jobs.run(worker_jobs.explore(tmp_path / "runs/trees", environment=CorridorConfig(count=4)))
    for name, text in FILES.items():
        (tmp_path / f"{name}.toml").write_text(text)
    return tmp_path


def test_a_stage_runs_once_and_is_refused_after_a_change(folder: Path) -> None:
    """Trainings in a pipeline are part of the whole way."""
    result = run("--only", "labels")
    assert result.exit_code == 0, result.output
    summary = json.loads((folder / "runs/pipeline/summary.json").read_text())
    assert summary["stages"]["labels"]["cpu_s"] > 0
    assert summary["stages"]["qnet"]["state"] == "waiting"
    log = (folder / "runs/pipeline/logs/labels.log").read_text()
    assert log.startswith("$ qguide label --config label.toml")

    again = run("--only", "labels")
    assert again.exit_code == 0, again.output
    assert again.output.count("not run again") == 1

    changed = run("--only", "labels", "--set", "labels.gamma=0.5")
    assert changed.exit_code == 2
    assert "stage labels has finished, but since then gamma was" in " ".join(changed.output.split())


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

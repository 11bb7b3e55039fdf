"""`qguide configs`: the package's job files, found in any folder."""

import tomllib
from pathlib import Path

import pytest
from typer.testing import CliRunner

from qguide.cli import app
from qguide.jobs.table import JOBS
from qguide.pipelines.config import load_pipeline
from qguide.pipelines.plan import build_plan
from qguide.training.configs.job_files import load_config
from qguide.training.environments.registry import read_task_ids
from tests.support.serving import ROOT

RUN = CliRunner()
CONFIGS = ROOT / "training" / "configs"
ERRANDS = Path("training/configs/errands/pipeline.toml")


@pytest.fixture(autouse=True)
def empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory: a folder without a clone around it."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_list_names_every_job_file_and_what_it_is_for() -> None:
    done = RUN.invoke(app, ["configs", "list"])
    assert done.exit_code == 0, done.output
    named = [line for line in done.output.splitlines() if line.startswith("training/")]
    assert named == sorted(str(path.relative_to(ROOT)) for path in CONFIGS.rglob("*.toml"))
    assert done.output.count("\n    ") == len(named)


def test_a_listed_file_is_shown() -> None:
    done = RUN.invoke(app, ["configs", "show", str(ERRANDS)])
    assert done.output == (ROOT / ERRANDS).read_text()
    assert RUN.invoke(app, ["configs", "show", "errands/pipeline.toml"]).output == done.output


@pytest.mark.parametrize("name", ["lamps.toml", "../job_files.py", "/etc/passwd"])
def test_another_file_is_refused_with_the_way_to_the_list(name: str) -> None:
    done = RUN.invoke(app, ["configs", "show", name])
    assert done.exit_code == 2
    assert "qguide configs list" in done.output


def test_jobs_pipelines_and_lists_of_tasks_are_found_outside_a_clone() -> None:
    Path("runs/errands/served").mkdir(parents=True)
    stages = build_plan(load_pipeline(ERRANDS)).stages
    assert list(stages) == ["import", "trunk", "label", "qnet"]
    job = Path("training/configs/webshop/train_dpo.toml")
    assert load_config(JOBS["train-dpo"].config_type(), job)
    assert read_task_ids(Path("training/environments/intercode_sql/folds/1.txt"))


def test_a_file_of_ones_own_comes_before_the_packages(empty_folder: Path) -> None:
    own = empty_folder / "training/configs/errands/label.toml"
    own.parent.mkdir(parents=True)
    own.write_text('trees = ["mine"]\noutput = "labels"\n')
    config = load_config(JOBS["label"].config_type(), own.relative_to(empty_folder))
    assert config.model_dump()["trees"] == (Path("mine"),)


def test_a_copy_brings_what_it_extends_and_runs_and_works_where_it_lies() -> None:
    done = RUN.invoke(app, ["configs", "copy", "alfworld/pipeline_agentprm.toml", "--to", "mine"])
    assert done.exit_code == 0, done.output
    copied = {str(path.relative_to("mine")) for path in Path("mine").rglob("*.toml")}
    assert {"alfworld/collect.toml", "alfworld/train_qnet_td.toml"} <= copied
    assert "alfworld/ipr.toml" not in copied
    original = CONFIGS / "alfworld/pipeline_agentprm.toml"
    mine = Path("mine/alfworld/pipeline_agentprm.toml")
    assert mine.read_bytes() == original.read_bytes()
    Path("data/alfworld/train").mkdir(parents=True)
    assert build_plan(load_pipeline(mine)).stages
    again = RUN.invoke(app, ["configs", "copy", "alfworld/pipeline_agentprm.toml", "--to", "mine"])
    assert again.exit_code == 2
    assert "--to" in again.output


def test_every_file_is_toml() -> None:
    for path in CONFIGS.rglob("*.toml"):
        tomllib.loads(path.read_text())

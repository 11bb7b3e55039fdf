"""The job files of each environment, in the order of its pipeline, at the smallest size."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from qguide.cli import app
from qguide.pipelines.config import load_pipeline
from qguide.pipelines.plan import build_plan
from qguide.training.evaluation.records import DEFAULT_METHODS
from tests.support.serving import ROOT

CONFIGS = ROOT / "training" / "configs"
ENVIRONMENTS: dict[str, tuple[str, ...]] = {
    "hotpotqa": (),
    "webshop": (),
    "sciworld": ("environment.split=smoke", "environment.processes=1"),
    "sciworld/short": ("environment.split=smoke", "environment.processes=1", "environment.slice=:"),
}
"""Overrides of every job that plays an environment."""

TINY = (
    "architecture.vocab_size=320",
    "architecture.hidden_size=32",
    "architecture.intermediate_size=64",
    "architecture.layers=1",
    "architecture.heads=2",
    "architecture.copy_heads=0",
    "architecture.induction_heads=0",
    "optimization.epochs=1",
    # Nearly random weights: their draws differ, so there is something to choose from.
    "optimization.lr=1e-6",
    "optimization.muon_lr=1e-6",
)
SMALLEST = {
    "collect": ("environment.limit=6",),
    "sft": TINY,
    "groups": (
        "environment.limit=2",
        "decisions.max_steps=2",
        "decisions.horizon=3",
        "decisions.max_tokens=8",
        "decisions.valued_share=1.0",
    ),
    "train-qnet": ("optimization.epochs=1", "head_width=8", "validation_fraction=0.0"),
    "evaluate": ("environment.limit=2", "seeds=[0]", "max_steps=2", "candidates=2", "max_tokens=8"),
}
"""Overrides of each job."""

PLAYING = {"collect", "groups", "evaluate"}


# ScienceWorld's simulator starts anew for each stage, which takes most of the test's time.
LINES = [pytest.param(name, marks=pytest.mark.slow if name.startswith("sciworld") else ()) for name in ENVIRONMENTS]


@pytest.mark.parametrize("environment", LINES)
def test_the_job_files_lead_from_solutions_to_results(
    environment: str, request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if environment.startswith("sciworld"):
        request.getfixturevalue("sciworld_installed")
    monkeypatch.chdir(tmp_path)
    folder = CONFIGS / environment
    for stage in load_pipeline(folder / "pipeline.toml").stages.values():
        playing = ENVIRONMENTS[environment] if stage.job in PLAYING else ()
        overrides = [part for one in (*stage.set, *SMALLEST[stage.job], *playing) for part in ("--set", one)]
        arguments = [stage.job, "--config", str(stage.config), *overrides]
        result = CliRunner().invoke(app, arguments, catch_exceptions=False)
        assert result.exit_code == 0, result.output
    results = json.loads((tmp_path / f"runs/{environment}/evaluation/results.json").read_text())
    assert results["complete"]
    assert {row["method"] for row in results["rows"]} == set(DEFAULT_METHODS)


@pytest.mark.parametrize("environment", ENVIRONMENTS)
def test_every_stage_of_a_pipeline_but_those_that_collect_solutions_needs_another(environment: str) -> None:
    plan = build_plan(load_pipeline(CONFIGS / environment / "pipeline.toml"))
    stages = list(plan.stages)
    assert [stage.name for stage in plan.order()] == stages
    without = [stage for stage in stages if not plan.stages[stage].needs]
    assert all(plan.stages[stage].job == "collect" for stage in without)
    assert stages[0] in without

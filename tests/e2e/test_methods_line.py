"""The pipelines of the methods and of the variations, stage after stage, at the smallest size."""

import json
import re
import shutil
from collections.abc import Iterable
from pathlib import Path

import pytest
from typer.testing import CliRunner

from qguide.cli import app
from qguide.pipelines.config import PipelineConfig, StageConfig, load_pipeline
from qguide.pipelines.plan import Stage, build_plan
from qguide.qnet.models.loading import embedded_path
from qguide.training.environments.alfworld.bundle import write_games
from tests.support.serving import ROOT

FOLDER = ROOT / "training" / "configs" / "alfworld" / "low"
TRAIN_GAMES, VALID_GAMES = 6, 1
SLICES = {300: "0:3", 1300: "3:5", 10_000: "5:6"}
"""Games here (the expert's, others, held back), by the bound below which the real slice begins."""

ONE_OF_EACH = (
    *("expert", "sft", "eto_episodes", "eto_pairs", "eto", "groups", "groups_held_back", "qnet", "qnet_played"),
    *("searches", "searches_labels", "rising", "ipr_pairs"),
)
"""Stages of the methods: of each job the first, and what it reads."""

TRAINED = ("optimization.epochs=1", "optimization.processes=1")
FEWER = ("attempts=2", "keep=2", "max_steps=12")
CUT_OFF = "max_steps=10"
"""So few steps that some episodes are lost and some are won: what a pair needs."""

SMALLEST: dict[str, tuple[str, ...]] = {
    "collect": (),
    "sft": TRAINED,
    "explore": (
        "exploration.max_draws=2",
        "exploration.max_steps=8",
        "mcts.iterations=2",
        "mcts.stop_at=2.0",
        "mcts.max_steps=8",
    ),
    "groups": ("decisions.max_steps=2", "decisions.horizon=3", "decisions.valued_share=1.0"),
    "label": (),
    "pairs": (),
    "rro": (
        "environment.games=data/alfworld/short",
        "environment.slice=:",
        "rising.stop=never",
        "rising.max_draws=3",
        "rewards.rollouts=1",
        "rewards.max_steps=5",
    ),
    "ipr": ("rewards.rollouts=1", "rewards.max_steps=6", "contrast.tau=0.0"),
    "train-qnet": (*TRAINED, "head_width=8", "validation_fraction=0.0"),
    "train-dpo": (*TRAINED, "validation_fraction=0.0"),
    "evaluate": ("seeds=[0]", "max_steps=2", "candidates=2", "max_tokens=8"),
}
"""Overrides of each job."""


def games_from(begin: int) -> str:
    """The slice here that stands for one that begins there."""
    return next(games for bound, games in SLICES.items() if begin < bound)


def overrides(stage: Stage) -> list[str]:
    """The smallest size of a stage's job, on the games here that stand for its own."""
    environment = getattr(stage.config, "environment", None)
    begin, _, end = getattr(environment, "slice", ":").partition(":")
    smallest = [f"environment.slice={games_from(int(begin or 0))}"] if end else []
    smallest += SMALLEST[stage.job]
    if getattr(getattr(stage.config, "continuation", None), "repetitions", 1) > 1:
        smallest.append("continuation.repetitions=2")
    if getattr(stage.config, "attempts", 1) > 1:
        smallest += FEWER
    if "collect_eto.toml" in stage.arguments[2]:
        smallest.append(CUT_OFF)
    return [part for one in smallest for part in ("--set", one)]


def kind(stage: StageConfig) -> tuple[str, ...]:
    """A stage's work, whatever its numbers, the runs that it reads and its own name."""
    settings = (re.sub(r"=([\d.:e-]+$|.*runs/.*)", "=", one) for one in stage.set)
    named = {one for one in settings if not one.startswith(("output=", "name="))}
    return (stage.job, str(stage.config), *sorted(named))


def first_of_each_kind(pipeline: PipelineConfig, *, known: Iterable[StageConfig]) -> list[str]:
    """Stages to run so that none is left out but those of a kind that has run."""
    kinds = {kind(stage) for stage in known}
    firsts = []
    for name, stage in pipeline.stages.items():
        if kind(stage) not in kinds:
            kinds.add(kind(stage))
            firsts.append(name)
    return firsts


def run(stages: Iterable[Stage]) -> None:
    """Run the stages and require complete results of each that plays."""
    for stage in stages:
        arguments = [*stage.arguments, *overrides(stage)]
        result = CliRunner().invoke(app, arguments, catch_exceptions=False)
        assert result.exit_code == 0, f"{stage.name}: {result.output}"
        if stage.job == "evaluate":
            assert json.loads((stage.output / "results.json").read_text())["complete"], stage.name


@pytest.fixture
def methods(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> PipelineConfig:
    """The pipeline of the methods, in a folder with games and a policy."""
    monkeypatch.chdir(tmp_path)
    write_games(tmp_path / "data/alfworld/train", first_seed=0, count=TRAIN_GAMES)
    write_games(tmp_path / "data/alfworld/valid_seen", first_seed=100, count=VALID_GAMES)
    # The policy wins this one in four steps, mostly: RRO, which rolls out from every step, needs no long one.
    write_games(tmp_path / "data/alfworld/short", first_seed=23, count=1)
    # Pairs need a policy that wins some games; this one is not trained in a test.
    shutil.copytree(embedded_path("policy"), "runs/low/sft/checkpoint")
    return load_pipeline(FOLDER / "pipeline_methods.toml")


def test_a_stage_of_every_job_runs_on_what_the_stages_before_it_wrote(methods: PipelineConfig) -> None:
    assert {methods.stages[name].job for name in ONE_OF_EACH} == {stage.job for stage in methods.stages.values()}
    run(stage for stage in build_plan(methods, only=ONE_OF_EACH).order() if stage.name != "sft")


@pytest.mark.slow
def test_every_stage_runs_and_every_variation_on_what_the_methods_wrote(methods: PipelineConfig) -> None:
    run(stage for stage in build_plan(methods).order() if stage.name != "sft")
    variations = load_pipeline(FOLDER / "pipeline_variations.toml")
    firsts = first_of_each_kind(variations, known=methods.stages.values())
    run(build_plan(variations, only=firsts).order())

"""The pipeline behind the table of methods, stage after stage, at the smallest size."""

import json
import shutil
import tomllib
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from qguide.commands.jobs import app
from qnet.models.loading import embedded_path
from tests.support.serving import ROOT
from training.environments.alfworld.generate import generate_games

FOLDER = ROOT / "training" / "configs" / "alfworld" / "low"
TRAIN_GAMES, VALID_GAMES = 8, 1
EXPERTS, OTHERS, HELD_BACK = "0:4", "4:7", "7:8"
SLICES = {"0:300": EXPERTS, "300:600": OTHERS, "300:400": OTHERS}
"""Slices of the table, and those of the few games here."""
IN_THE_FILE = {
    "collect.toml": EXPERTS,
    "ipr.toml": EXPERTS,
    "explore_mcts.toml": OTHERS,
    "rro.toml": OTHERS,
    "groups_held_back.toml": HELD_BACK,
}
"""Job files whose stage takes its games from them."""

TRAINED = ("optimization.epochs=1", "optimization.processes=1")
CUT_OFF = "max_steps=10"
"""So few steps that some episodes are lost and some are won: what a pair needs."""

SMALLEST: dict[str, tuple[str, ...]] = {
    "collect": (),
    "sft": TRAINED,
    "explore": (
        "exploration.max_draws=3",
        "exploration.max_steps=10",
        "mcts.iterations=5",
        "mcts.stop_at=2.0",
        "mcts.max_steps=10",
    ),
    "groups": ("decisions.max_steps=2", "decisions.horizon=3", "decisions.valued_share=1.0"),
    "label": (),
    "pairs": (),
    "rro": ("rising.stop=never", "rewards.rollouts=1", "rewards.max_steps=10"),
    "ipr": ("rewards.rollouts=1", "rewards.max_steps=6", "contrast.tau=0.0"),
    "train-qnet": (*TRAINED, "head_width=8", "validation_fraction=0.0"),
    "train-dpo": (*TRAINED, "validation_fraction=0.0"),
    "evaluate": ("seeds=[0]", "max_steps=2", "candidates=2", "max_tokens=8"),
}
"""Overrides of each job."""


def overrides(stage: dict[str, Any]) -> list[str]:
    """A stage's own, then the smallest size."""
    own: list[str] = stage.get("set", [])
    slices = [one.partition("=")[2] for one in own if one.startswith("environment.slice=")]
    smallest = [*SMALLEST[stage["job"]]]
    if stage["config"] in IN_THE_FILE:
        smallest.append(f"environment.slice={IN_THE_FILE[stage['config']]}")
    elif slices:
        smallest.append(f"environment.slice={SLICES[slices[0]]}")
    if stage["config"] == "../baselines/collect_eto.toml":
        smallest.append(CUT_OFF)
    return [part for one in (*own, *smallest) for part in ("--set", one)]


def test_every_stage_runs_on_what_the_stages_before_it_wrote(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    generate_games(tmp_path / "data/alfworld/train", first_seed=0, count=TRAIN_GAMES)
    generate_games(tmp_path / "data/alfworld/valid_seen", first_seed=100, count=VALID_GAMES)
    stages = tomllib.loads((FOLDER / "pipeline_methods.toml").read_text())["stages"]
    # Pairs need a policy that wins some games; this one is not trained in a test.
    shutil.copytree(embedded_path("policy"), "runs/low/sft/checkpoint")
    del stages["sft"]
    for name, stage in stages.items():
        arguments = [stage["job"], "--config", str(FOLDER / stage["config"]), *overrides(stage)]
        result = CliRunner().invoke(app, arguments, catch_exceptions=False)
        assert result.exit_code == 0, f"{name}: {result.output}"
    played = {path.parent.name for path in tmp_path.glob("runs/low/played/*/results.json")}
    assert len(played) == sum(stage["job"] == "evaluate" for stage in stages.values())
    for run in played:
        results = json.loads((tmp_path / "runs/low/played" / run / "results.json").read_text())
        assert results["complete"], run

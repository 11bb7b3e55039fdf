"""Regret on generated games: the expert's mistakes as candidates, the expert plays on."""

from collections.abc import Sequence
from pathlib import Path

import pytest
from rich.console import Console

from qnet.errors import ConfigError
from qnet.types import ScoreRequest, ScoreResult
from training.data.runs import read_rows
from training.environments.alfworld.bundle import AlfWorldConfig
from training.environments.alfworld.expert.policy import ExpertPolicy
from training.evaluation.choice_regret import ChoiceRegretRow, DecisionRow, summarise_choices
from training.jobs.choice_regret import ChoiceRegretConfig, run_choice_regret

QUIET = Console(quiet=True)


class LikesTheLast:
    """Q rises with a candidate's place."""

    name = "likes-the-last"

    def score(self, requests: Sequence[ScoreRequest]) -> list[ScoreResult]:
        return [ScoreResult(tuple(map(float, range(len(r.candidates)))), 1) for r in requests]


def config(output: Path, *, count: int = 3, **changes: object) -> ChoiceRegretConfig:
    games = AlfWorldConfig(first_seed=0, count=count)
    return ChoiceRegretConfig(output=output, environment=games, max_steps=6, **changes)


def choice_regret(config: ChoiceRegretConfig) -> dict[str, float]:
    return run_choice_regret(config, policy=ExpertPolicy(), scorer=LikesTheLast(), console=QUIET)


def test_each_candidate_is_played_to_the_end_by_one_who_knows(tmp_path: Path) -> None:
    figures = choice_regret(config(tmp_path))
    rows = list(read_rows(tmp_path / "rows.jsonl", ChoiceRegretRow))
    decisions = [decision for row in rows for decision in row.decisions]
    assert figures["episodes"] == len(rows) == 3
    assert figures["decisions"] == len(decisions) > 3
    for decision in decisions:
        assert decision.chosen == len(decision.replies) - 1  # what the scorer likes
        assert len(decision.steps) == len(decision.idle) == len(decision.replies) > 1
        assert sum(decision.draws) == 5
        assert min(decision.steps) < 60  # the expert finds the way back from most mistakes
    assert any(any(decision.idle) for decision in decisions)
    assert figures["regret"] >= 0


def test_a_run_goes_on_where_it_was_and_ends_with_the_same_figures(tmp_path: Path) -> None:
    whole = choice_regret(config(tmp_path / "whole"))
    choice_regret(config(tmp_path / "cut"))
    lines = (tmp_path / "cut" / "rows.jsonl").read_text().splitlines(keepends=True)
    (tmp_path / "cut" / "rows.jsonl").write_text(lines[0] + lines[1][:40])
    assert choice_regret(config(tmp_path / "cut")) == pytest.approx(whole)
    with pytest.raises(ConfigError, match="seed"):
        choice_regret(config(tmp_path / "cut", seed=1))


def test_figures_are_what_one_counts_by_hand() -> None:
    first = DecisionRow(
        step=1,
        after_idle=True,
        replies=("a", "b", "c"),
        draws=(3, 1, 1),
        q_values=(0.1, 0.3, 0.1),
        steps=(4, 9, 4),
        idle=(False, True, False),
        chosen=1,
    )
    second = first.model_copy(update={"after_idle": False, "steps": (2, 1, 2), "chosen": 1})
    rows = [
        ChoiceRegretRow(task_id="x", kind="k", reward=1.0, success=True, decisions=(first, second)),
        ChoiceRegretRow(task_id="y", kind="k", reward=0.0, success=False, decisions=()),
    ]
    assert summarise_choices(rows) == pytest.approx(
        {
            "episodes": 2,
            "decisions": 2,
            "decisions_after_idle": 1,
            "pairs": 4,
            "success_rate": 0.5,
            "regret": 2.5,
            "regret_of_first": 0.5,
            "regret_of_random": (1.0 + 0.8) / 2,
            "idle_after_idle": 1.0,
            "idle_after_idle_of_random": 0.2,
            "pair_accuracy": 0.5,
            "idle_pair_accuracy": 0.5,
        }
    )


def test_without_a_decision_there_is_nothing_to_say() -> None:
    figures = summarise_choices(
        [ChoiceRegretRow(task_id="x", kind="k", reward=1.0, success=True, decisions=())]
    )
    assert "regret" not in figures
    assert figures["success_rate"] == 1.0

"""Figures are what one counts by hand."""

from typing import Any

import pytest

from training.data.decision_groups import (
    CandidateRow,
    ContinuationRow,
    DecisionGroupsRow,
    DecisionRow,
)
from training.evaluation.choice_regret import (
    ScoredDecisionRow,
    ScoredEpisodeRow,
    candidate_steps,
    choice_figures,
    scored_episode,
)
from training.evaluation.read_pairs import ScoredReadPair, read_pair_figures


def candidate(action: str, *ends: tuple[float, int], **changes: Any) -> CandidateRow:
    continuations = tuple(
        ContinuationRow(outcome_reward=reward, steps=steps, terminated=reward > 0)
        for reward, steps in ends
    )
    values: dict[str, Any] = {
        "action": f"Action: {action}",
        "count": 1,
        "observation": "",
        "continuations": continuations,
    }
    return CandidateRow.model_validate(values | changes)


GROUPS = DecisionGroupsRow(
    task_id="x",
    kind="k",
    environment="kitchen",
    first_observation="Find it.",
    decisions=(
        DecisionRow(
            candidates=(
                candidate("wait", (1.0, 9), valid=False, count=3),
                candidate("go", (1.0, 4), (1.0, 6)),
                candidate("sit", (0.0, 20)),
            ),
            chosen=0,
            greedy=0,
        ),
        DecisionRow(candidates=(candidate("go", (1.0, 5)),), chosen=0, greedy=0),
        DecisionRow(
            candidates=(candidate("a", (1.0, 3)), candidate("b", (1.0, 3), valid=False)), chosen=0
        ),
    ),
    source="policy",
    continuation="expert",
    seed=0,
)


def test_a_decision_keeps_what_the_scorer_and_the_continuations_say() -> None:
    scored = scored_episode(GROUPS, [[0.1, 0.3, 0.3], [0.0], [0.5, 0.7]], most_steps=30)
    first, last = scored.decisions  # the second had nothing to choose between
    assert (first.step, last.step) == (0, 2)
    assert first.steps == (9.0, 5.0, 30.0)
    assert (first.chosen, last.chosen) == (1, 1)
    assert (first.after_invalid, last.after_invalid) == (False, False)
    assert first.draws == (3, 1, 1)


@pytest.mark.parametrize(
    ("ends", "steps"),
    [
        ([(1.0, 4)], 4.0),
        ([(0.0, 4)], 50.0),
        ([(1.0, 70)], 50.0),
        ([(0.5, 10)], 30.0),
        ([(1.0, 10), (0.0, 40)], 30.0),
    ],
)
def test_steps_of_a_candidate(ends: list[tuple[float, int]], steps: float) -> None:
    assert candidate("a", *ends).continuations
    assert candidate_steps(candidate("a", *ends), most=50) == pytest.approx(steps)


FIRST = ScoredDecisionRow(
    step=1,
    after_invalid=True,
    replies=("a", "b", "c"),
    draws=(3, 1, 1),
    q_values=(0.1, 0.3, 0.1),
    steps=(4, 9, 4),
    valid=(True, False, True),
    greedy=0,
    chosen=1,
)
SECOND = FIRST.model_copy(
    update={"after_invalid": False, "steps": (3, 1, 2), "q_values": (0, 2, 1), "greedy": None}
)


def test_figures_of_two_decisions() -> None:
    rows = [
        ScoredEpisodeRow(task_id="x", kind="k", reward=1.0, decisions=(FIRST, SECOND)),
        ScoredEpisodeRow(task_id="y", kind="k", reward=0.0, decisions=()),
    ]
    assert choice_figures(rows) == pytest.approx(
        {
            "episodes": 2,
            "decisions": 2,
            "regret": (5 + 0) / 2,
            "regret_of_greedy": 0.0,
            "regret_of_random_distinct": (5 / 3 + 1) / 2,
            "regret_of_random_draw": (1.0 + 1.4) / 2,
            "pairs": 5,
            "pair_accuracy": 3 / 5,
            "pair_accuracy_by_gap": (1 + 2 + 1) / (5 + 5 + 1 + 2 + 1),
            "validity_pairs": 4,
            "valid_above_invalid": 0.0,
            "spearman": (-1.0 + 1.0) / 2,
            "invalid_rate": 1.0,
            "invalid_rate_of_greedy": 0.0,
            "invalid_rate_of_random_distinct": 1 / 3,
            "invalid_rate_of_random_draw": 0.2,
            "invalid_after_invalid": 1.0,
            "invalid_after_invalid_of_random_distinct": 1 / 3,
            "regret_by_task": 2.5,
            "regret_by_task_low": 2.5,
            "regret_by_task_high": 2.5,
        }
    )


def test_values_that_are_all_alike_order_nothing() -> None:
    alike = SECOND.model_copy(update={"q_values": (1.0, 1.0, 1.0), "chosen": 0})
    rows = [ScoredEpisodeRow(task_id="x", kind="k", reward=1.0, decisions=(alike,))]
    figures = choice_figures(rows)
    assert figures["pair_accuracy"] == figures["pair_accuracy_by_gap"] == 0.5
    assert figures["spearman"] == 0.0


def test_without_a_decision_there_is_nothing_to_say() -> None:
    row = ScoredEpisodeRow(task_id="x", kind="k", reward=1.0, decisions=())
    figures = choice_figures([row])
    assert "regret" not in figures
    assert figures["decisions"] == 0


def test_read_pairs_count_where_the_reply_can_work() -> None:
    pairs = [
        ScoredReadPair(0.9, 0.1, rival_present=0.5, rival_absent=0.5),
        ScoredReadPair(0.4, 0.6, rival_present=0.5, rival_absent=0.5),
        ScoredReadPair(0.4, 0.4),
    ]
    assert read_pair_figures(pairs) == pytest.approx(
        {
            "read_pairs": 3,
            "read_pair_accuracy": 0.5,
            "leaves_when_absent": 0.5,
            "takes_when_present": 0.5,
        }
    )
    assert read_pair_figures([]) == {}

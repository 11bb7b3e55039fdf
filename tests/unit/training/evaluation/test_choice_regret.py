"""Scored decisions of an episode, their figures by task, and the figures of read pairs."""

import pytest

from qguide.training.data.decision_groups import GroupDecision
from qguide.training.evaluation.choice_regret import ScoredEpisodeRow, candidate_steps, choice_figures, scored_episode
from tests.support.decision_groups import candidate, groups_row

GROUPS = groups_row(
    GroupDecision(
        (
            candidate("wait", (1.0, 9), valid=False, count=3),
            candidate("go", (1.0, 4), (1.0, 6)),
            candidate("sit", (0.0, 20)),
        ),
        chosen=0,
        greedy=0,
    ),
    GroupDecision((candidate("go", (1.0, 5)),), chosen=0, greedy=0),
    ((candidate("a", (1.0, 3)), candidate("b", (1.0, 3), valid=False)), 0),
    task_id="x",
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
    [([(1.0, 4)], 4.0), ([(0.0, 4)], 50.0), ([(1.0, 70)], 50.0), ([(0.5, 10)], 30.0), ([(1.0, 10), (0.0, 40)], 30.0)],
)
def test_steps_of_a_candidate(ends: list[tuple[float, int]], steps: float) -> None:
    assert candidate_steps(candidate("a", *ends), horizon=50) == pytest.approx(steps)


def test_regret_by_task_is_the_mean_over_tasks_of_their_decisions() -> None:
    row = scored_episode(GROUPS, [[0.9, 0.3, 0.3], [0.0], [0.5, 0.7]], most_steps=30)
    other = row.model_copy(update={"task_id": "y", "decisions": row.decisions[:1]})
    empty = row.model_copy(update={"task_id": "z", "decisions": ()})
    figures = choice_figures([row, other, empty])
    assert (figures["episodes"], figures["decisions"]) == (3, 3)
    assert figures["regret_steps"] == pytest.approx((4 + 0 + 4) / 3)
    assert figures["regret_steps_of_greedy"] == pytest.approx((4 + 4) / 2)
    assert figures["regret_steps_of_random_draw"] == pytest.approx((7.4 + 0 + 7.4) / 3)
    assert figures["regret_steps_by_task"] == pytest.approx((2 + 4) / 2)
    assert figures["regret_steps_by_task_low"] == 2
    assert figures["regret_steps_by_task_high"] == 4


def test_rank_correlation_by_task_leaves_out_states_where_every_choice_is_alike() -> None:
    # The last state's candidates both need three steps.
    unrelated = scored_episode(GROUPS, [[0.9, 0.3, 0.3], [0.0], [0.5, 0.7]], most_steps=30)
    right = scored_episode(GROUPS, [[0.3, 0.9, 0.1], [0.0], [0.5, 0.7]], most_steps=30)
    figures = choice_figures([unrelated, right.model_copy(update={"task_id": "y"})])
    assert figures["spearman"] == pytest.approx((0 + 1) / 2)
    assert figures["spearman_by_task"] == pytest.approx((0 + 1) / 2)
    assert figures["spearman_by_task_low"] == pytest.approx(0)
    assert figures["spearman_by_task_high"] == pytest.approx(1)


def test_an_episode_without_a_choice_has_no_regret() -> None:
    row = ScoredEpisodeRow(task_id="x", kind="k", reward=1.0, decisions=())
    figures = choice_figures([row])
    assert "regret_steps" not in figures
    assert "regret_steps_by_task" not in figures
    assert figures["decisions"] == 0

"""Figures of choices among the candidates of a state, against values counted by hand."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qguide.training.algorithms.choice_quality import ScoredChoice, choice_quality


def test_a_perfect_order_has_no_regret() -> None:
    choice = ScoredChoice(q_values=[0.3, 0.1, 0.2], steps=[2, 9, 5], valid=[True, False, True])
    assert choice_quality([choice]) == pytest.approx(
        {
            "decisions": 1,
            "regret_steps": 0,
            "regret_steps_of_random_distinct": 10 / 3,
            "pairs": 3,
            "pair_accuracy": 1,
            "pair_accuracy_by_gap": 1,
            "validity_pairs": 2,
            "valid_above_invalid": 1,
            "spearman": 1,
            "invalid_rate": 0,
            "invalid_rate_of_random_distinct": 1 / 3,
        }
    )


def test_the_wrong_order_is_the_mirror_image() -> None:
    choice = ScoredChoice(q_values=[0.1, 0.3, 0.2], steps=[2, 9, 5], valid=[True, False, True])
    figures = choice_quality([choice])
    assert figures["spearman"] == pytest.approx(-1.0)
    assert figures["regret_steps"] == 7
    assert figures["pair_accuracy"] == figures["valid_above_invalid"] == 0
    assert figures["invalid_rate"] == 1


def test_candidates_with_the_same_steps_have_no_order() -> None:
    figures = choice_quality([ScoredChoice([0.1, 0.2], [4, 4], [True, True])])
    assert figures.keys().isdisjoint({"spearman", "pair_accuracy", "valid_above_invalid"})
    assert figures["regret_steps"] == 0


def test_a_tie_counts_half_and_the_first_candidate_is_chosen() -> None:
    figures = choice_quality([ScoredChoice([0.2, 0.2], [4, 9], [True, True])])
    assert figures["pair_accuracy"] == figures["pair_accuracy_by_gap"] == 0.5
    assert figures["regret_steps"] == 0
    assert figures["spearman"] == 0


FIRST = ScoredChoice(
    q_values=(0.1, 0.3, 0.1), steps=(4, 9, 4), valid=(True, False, True), draws=(3, 1, 1), greedy=0, after_invalid=True
)
SECOND = replace(FIRST, after_invalid=False, steps=(3, 1, 2), q_values=(0, 2, 1), greedy=None)


def test_figures_of_two_choices_with_draws_and_a_greedy_candidate() -> None:
    assert choice_quality([FIRST, SECOND]) == pytest.approx(
        {
            "decisions": 2,
            "regret_steps": (5 + 0) / 2,
            "regret_steps_of_greedy": 0.0,
            "regret_steps_of_random_distinct": (5 / 3 + 1) / 2,
            "regret_steps_of_random_draw": (1.0 + 1.4) / 2,
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
        }
    )


def test_without_a_choice_there_is_no_figure() -> None:
    assert choice_quality([]) == {"decisions": 0, "pairs": 0, "validity_pairs": 0}


numbers = st.integers(0, 9).map(float)


@given(st.lists(st.tuples(numbers, numbers, st.booleans()), min_size=2, max_size=6))
def test_only_the_order_of_q_counts(candidates: list[tuple[float, float, bool]]) -> None:
    q_values, steps, valid = (list(column) for column in zip(*candidates, strict=True))
    choice = ScoredChoice(q_values, steps, valid)
    stretched = ScoredChoice([q**3 + 5 for q in q_values], steps, valid)
    assert choice_quality([choice]) == pytest.approx(choice_quality([stretched]))
    figures = choice_quality([choice])
    assert 0 <= figures["regret_steps"] <= max(steps) - min(steps)
    assert -1 - 1e-9 <= figures.get("spearman", 0) <= 1 + 1e-9

"""Figures of choices among the candidates of a state."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from training.algorithms.choice_quality import Group, choice_quality


def test_a_perfect_order_has_no_regret() -> None:
    group = Group(q_values=[0.3, 0.1, 0.2], steps=[2, 9, 5], valid=[True, False, True])
    assert choice_quality([group]) == {
        "decisions": 1,
        "spearman": pytest.approx(1.0),
        "regret_steps": 0,
        "regret_steps_of_random": pytest.approx(10 / 3),
        "pairs_in_order": 1,
        "valid_above_invalid": 1,
        "invalid_chosen": 0,
        "invalid_of_random": pytest.approx(1 / 3),
    }


def test_the_wrong_order_is_the_mirror_image() -> None:
    group = Group(q_values=[0.1, 0.3, 0.2], steps=[2, 9, 5], valid=[True, False, True])
    figures = choice_quality([group])
    assert figures["spearman"] == pytest.approx(-1.0)
    assert figures["regret_steps"] == 7
    assert figures["pairs_in_order"] == figures["valid_above_invalid"] == 0
    assert figures["invalid_chosen"] == 1


def test_groups_without_a_difference_say_nothing_of_order() -> None:
    figures = choice_quality([Group([0.1, 0.2], [4, 4], [True, True])])
    assert figures.keys().isdisjoint({"spearman", "pairs_in_order", "valid_above_invalid"})
    assert figures["regret_steps"] == 0


def test_a_tie_counts_half_and_the_first_is_taken() -> None:
    figures = choice_quality([Group([0.2, 0.2], [4, 9], [True, True])])
    assert figures["pairs_in_order"] == 0.5
    assert figures["regret_steps"] == 0
    assert "spearman" not in figures


numbers = st.integers(0, 9).map(float)


@given(st.lists(st.tuples(numbers, numbers, st.booleans()), min_size=2, max_size=6))
def test_only_the_order_of_q_counts(candidates: list[tuple[float, float, bool]]) -> None:
    q_values, steps, valid = (list(column) for column in zip(*candidates, strict=True))
    group = Group(q_values, steps, valid)
    stretched = Group([q**3 + 5 for q in q_values], steps, valid)
    assert choice_quality([group]) == pytest.approx(choice_quality([stretched]))
    figures = choice_quality([group])
    assert 0 <= figures["regret_steps"] <= max(steps) - min(steps)
    assert -1 - 1e-9 <= figures.get("spearman", 0) <= 1 + 1e-9

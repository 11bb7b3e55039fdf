"""Accuracy of step rewards and their means, worked out by hand."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.papers.step_reward_accuracy import RolledOut, StepMean, mean_by_step, reward_accuracy

A, B = RolledOut((1.0, 0.0, 1.0, 1.0)), RolledOut((0.0, 0.0, 1.0, 0.0))
WON = RolledOut((1.0,), exact=True)


def test_one_roll_out_is_judged_by_the_other_three() -> None:
    judged = reward_accuracy([[A, B, WON]], rollouts=1, min_gap=0.1)
    # References 2/3, 1/3 and 1; estimates 1, 0 and 1: two pairs are right, A and WON tie.
    assert judged.pairs == 3
    assert judged.accuracy == pytest.approx(2.5 / 3)
    assert judged.error == pytest.approx(1 / 3)  # of A and B: WON needed no roll-outs


def test_equal_references_are_no_pair() -> None:
    judged = reward_accuracy([[A, B, WON]], rollouts=2, min_gap=0.1)
    # References 1, 1/2 and 1; estimates 1/2, 0 and 1.
    assert (judged.pairs, judged.accuracy) == (2, 1.0)
    assert judged.error == pytest.approx(1 / 2)


def test_an_order_is_wrong_where_the_estimates_turn_it_around() -> None:
    better, worse = RolledOut((0.0, 1.0, 1.0)), RolledOut((1.0, 0.0, 0.0))
    judged = reward_accuracy([[better, worse], [A]], rollouts=1, min_gap=0.1)
    assert (judged.pairs, judged.accuracy) == (1, 0.0)


def test_without_other_roll_outs_nothing_is_judged() -> None:
    judged = reward_accuracy([[A, B], [WON]], rollouts=4, min_gap=0.1)
    assert (judged.pairs, judged.accuracy, judged.error) == (0, None, None)


def test_the_mean_of_a_step_is_over_the_trajectories_that_reach_it() -> None:
    assert mean_by_step([[0.5, 1.0], [0.0]]) == [StepMean(1, 2, 0.25), StepMean(2, 1, 1.0)]
    assert mean_by_step([[None, 1.0], [None, 0.0, 1.0]]) == [StepMean(2, 2, 0.5), StepMean(3, 1, 1)]
    assert mean_by_step([]) == []


outcomes = st.lists(st.floats(0, 1), min_size=4, max_size=8)


@given(st.lists(st.lists(outcomes, max_size=4), max_size=4), st.integers(1, 3))
def test_shares_and_errors_lie_in_the_unit_interval(states: list[list[list[float]]], rollouts: int) -> None:
    actions = [[RolledOut(each) for each in state] for state in states]
    judged = reward_accuracy(actions, rollouts=rollouts, min_gap=0.05)
    assert judged.accuracy is None or 0 <= judged.accuracy <= 1
    assert judged.error is None or 0 <= judged.error <= 1 + 1e-9
    assert (judged.accuracy is None) == (judged.pairs == 0)

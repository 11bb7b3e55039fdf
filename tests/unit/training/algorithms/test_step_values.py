"""Values of actions from the endings of their continuations."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qguide.training.algorithms.choice_quality import Ending, discounted_value, linear_value, steps_left

WON, LOST = Ending(1.0, 3), Ending(0.0, 25)
endings = st.lists(st.builds(Ending, st.floats(0, 1), st.floats(0, 100)), min_size=1, max_size=4)


def test_a_failure_counts_as_the_horizon_however_soon_it_came() -> None:
    assert steps_left([WON], horizon=40) == 3
    assert steps_left([LOST], horizon=40) == 40
    assert steps_left([Ending(0.5, 3)], horizon=40) == 21.5
    assert steps_left([WON, LOST], horizon=40) == 21.5
    assert steps_left([WON], horizon=40, extra_steps=4) == 7


def test_far_from_the_goal_a_step_still_costs_as_much_if_counted_linearly() -> None:
    near = [linear_value(steps, step_cost=0.02) for steps in (0, 1)]
    far = [linear_value(steps, step_cost=0.02) for steps in (30, 31)]
    assert near[0] == 1.0
    assert near[0] - near[1] == pytest.approx(far[0] - far[1])
    discounted = [discounted_value([Ending(1.0, steps)], gamma=0.9) for steps in (30, 31)]
    assert discounted[0] - discounted[1] < (far[0] - far[1]) / 4


@given(endings, st.integers(1, 60))
def test_steps_lie_between_the_goal_and_the_horizon(found: list[Ending], horizon: int) -> None:
    assert 0 <= steps_left(found, horizon=horizon) <= horizon + 1e-9


@given(endings, st.floats(0.1, 1))
def test_a_discounted_value_is_an_outcome_at_most(found: list[Ending], gamma: float) -> None:
    value = discounted_value(found, gamma=gamma)
    assert 0 <= value <= max(ending.outcome_reward for ending in found) + 1e-9

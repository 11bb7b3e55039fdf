"""Reward rising sampling: its stop rule, its pair and its trend, by hand."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qguide.training.algorithms.preferences import Preference
from qguide.training.exploration.rising import StopRule, draws_another, extreme_pair, rising_shares


def drawn(rewards: Sequence[float], *, before: float, stop: StopRule = "rising", max_draws: int = 5) -> list[float]:
    """The rewards of the draws that are made if these would come."""
    made: list[float] = []
    while draws_another(made, before=before, max_draws=max_draws, stop=stop):
        made.append(rewards[len(made)])
    return made


@pytest.mark.parametrize(
    ("rewards", "made", "pair"),
    [
        ((0.2, 0.6, 0.9), [0.2, 0.6], Preference(1, 0)),
        ((0.5, 0.9), [0.5], None),
        ((0.4, 0.1, 0.3, 0.4, 0.2, 0.9), [0.4, 0.1, 0.3, 0.4, 0.2], Preference(0, 1)),
    ],
    ids=["the second rises", "an equal reward stops", "none rises"],
)
def test_draws_stop_where_the_reward_has_not_fallen(
    rewards: Sequence[float], made: list[float], pair: Preference | None
) -> None:
    assert drawn(rewards, before=0.5) == made
    assert extreme_pair(made) == pair


def test_a_fixed_size_never_stops_early() -> None:
    assert drawn((0.2, 0.6, 0.9), before=0.5, stop="never", max_draws=3) == [0.2, 0.6, 0.9]


def test_equal_rewards_are_no_pair() -> None:
    assert extreme_pair([0.4, 0.4, 0.4]) is None
    assert extreme_pair([0.4, 0.6, 0.6, 0.4]) == Preference(1, 0)


REWARDS = st.lists(st.sampled_from([0.0, 0.2, 0.4, 0.6, 0.8, 1.0]), min_size=5, max_size=5)


@given(rewards=REWARDS, before=st.sampled_from([0.0, 0.5, 1.0]))
def test_only_the_last_draw_can_rise_and_fixed_draws_begin_alike(rewards: list[float], before: float) -> None:
    made = drawn(rewards, before=before)
    assert all(reward < before for reward in made[:-1])
    assert made[-1] >= before or len(made) == 5
    assert drawn(rewards, before=before, stop="never")[: len(made)] == made


def test_rising_steps_are_counted_by_third() -> None:
    rewards = [0.2, 0.4, 0.4, 0.6, 0.6, 0.5, 1.0]
    assert rising_shares(rewards) == ((1, 2), (1, 2), (1, 2))
    assert rising_shares([0.2, 0.4]) == ((1, 1), (0, 0), (0, 0))
    assert rising_shares([0.2, 0.2, 0.1, 0.3, 0.4]) == ((0, 2), (1, 1), (1, 1))
    assert rising_shares([0.5]) == ((0, 0), (0, 0), (0, 0))


@given(rewards=st.lists(st.floats(min_value=0, max_value=1), min_size=1, max_size=40))
def test_every_step_is_in_one_third(rewards: list[float]) -> None:
    counts = rising_shares(rewards)
    assert sum(count.steps for count in counts) == len(rewards) - 1
    assert all(count.rising <= count.steps for count in counts)

"""The agent's own preferences, and the weight of its votes beside Q."""

import math

import numpy as np
import pytest

from qnet.types import Message
from training.learning.preferences import (
    MOST_TAU,
    choice_of,
    fitted_tau,
    greedy_preference,
    votes_preference,
)
from training.trajectory import Drawn

LEFT, RIGHT = (Message("assistant", f"Thought: hm\nAction: {way}") for way in ("left", "right"))
DRAWN = (Drawn(LEFT, 3, True), Drawn(RIGHT, 1, False))


def test_a_preference_is_above_the_mean_of_the_draws() -> None:
    choice = choice_of(LEFT, DRAWN)

    assert greedy_preference(choice) == pytest.approx(1 - 3 / 4)
    assert votes_preference(choice) == pytest.approx((math.log(3.5) - math.log(1.5)) / 4)


def test_thoughts_are_no_difference() -> None:
    other = Message("assistant", "Thought: again\nAction: left")
    choice = choice_of(other, (*DRAWN, Drawn(other, 2, False)))

    assert choice is not None
    assert (choice.counts, choice.taken, choice.greedy) == ((5, 1), 0, 0)


@pytest.mark.parametrize("drawn", [(), DRAWN[:1], (Drawn(RIGHT, 2), Drawn(Message("user", "up")))])
def test_a_single_candidate_and_an_action_of_ones_own_tell_no_preference(
    drawn: tuple[Drawn, ...],
) -> None:
    assert math.isnan(votes_preference(choice_of(LEFT, drawn)))


def test_a_reply_that_may_be_greedy_or_not_is_no_preference() -> None:
    untold = tuple(Drawn(one.message, one.count) for one in DRAWN)

    assert math.isnan(greedy_preference(choice_of(LEFT, untold)))
    assert not math.isnan(votes_preference(choice_of(LEFT, untold)))


def test_tau_is_the_weight_that_explains_what_was_earned() -> None:
    rng = np.random.default_rng(0)
    q, votes = rng.normal(size=(2, 2_000))
    earned = 0.5 * q + 0.1 * votes + rng.normal(size=2_000)

    assert fitted_tau(q, votes, earned) == pytest.approx(0.2, abs=0.1)
    assert fitted_tau(q, votes, q - votes) == 0.0
    assert fitted_tau(q, votes, votes - q) == MOST_TAU


def test_votes_that_never_vary_fit_nothing() -> None:
    q = np.array([1.0, -1.0])

    assert fitted_tau(q, np.array([np.nan, np.nan]), q) is None
    assert fitted_tau(q, np.array([0.0, np.nan]), q) is None

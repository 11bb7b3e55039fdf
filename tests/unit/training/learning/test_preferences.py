"""The agent's own preferences, and the weight of its votes beside Q."""

import math

import numpy as np
import pytest

from qguide.qnet.types import Message
from qguide.training.learning.preferences import (
    MOST_TAU,
    MOST_WEIGHT,
    Weights,
    choice_of,
    fitted_weights,
    greedy_preference,
    votes_preference,
)
from qguide.training.trajectory import Drawn

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
def test_a_single_candidate_and_an_action_of_ones_own_tell_no_preference(drawn: tuple[Drawn, ...]) -> None:
    assert math.isnan(votes_preference(choice_of(LEFT, drawn)))


def test_a_reply_that_may_be_greedy_or_not_is_no_preference() -> None:
    untold = tuple(Drawn(one.message, one.count) for one in DRAWN)

    assert math.isnan(greedy_preference(choice_of(LEFT, untold)))
    assert not math.isnan(votes_preference(choice_of(LEFT, untold)))


NOTHING = np.full(2_000, np.nan)
USUAL = 0.3


def test_weights_are_those_that_explain_what_was_earned() -> None:
    rng = np.random.default_rng(0)
    q, votes, greedy = rng.normal(size=(3, 2_000))
    earned = 0.5 * q + 0.1 * votes + 0.2 * greedy + rng.normal(size=2_000)

    found = fitted_weights(q, votes, greedy, earned, usual=USUAL)

    assert (found.tau, found.greedy) == pytest.approx((0.2, 2.0), rel=0.4)
    assert fitted_weights(q, votes, NOTHING, q - votes, usual=USUAL) == Weights(0.0)


def test_a_q_model_that_earns_nothing_leaves_the_choice_to_the_agent() -> None:
    q, votes = np.random.default_rng(0).normal(size=(2, 2_000))

    assert fitted_weights(q, votes, NOTHING, votes - q, usual=USUAL) == Weights(MOST_TAU)


def test_few_steps_by_which_q_earns_nothing_leave_it_its_usual_weight() -> None:
    q, votes = np.random.default_rng(0).normal(size=(2, 12))

    found = fitted_weights(q, votes, NOTHING[:12], votes - q, usual=USUAL)

    assert USUAL < found.tau < 2.5 * USUAL


def test_preferences_that_earn_nothing_leave_the_choice_to_q() -> None:
    rng = np.random.default_rng(1)
    q, votes = rng.normal(size=(2, 2_000))
    earned = rng.normal(size=2_000) - 0.5 * votes

    assert fitted_weights(q, votes, NOTHING, earned, usual=USUAL) == Weights(0.0)


def test_weights_do_not_depend_on_the_unit_of_outcomes() -> None:
    rng = np.random.default_rng(0)
    q, votes = rng.normal(size=(2, 2_000))
    earned = q + 0.5 * votes + rng.normal(size=2_000)

    found = fitted_weights(q, votes, NOTHING, earned, usual=USUAL)
    in_cents = fitted_weights(1e5 * q, votes, NOTHING, 1e5 * earned, usual=1e5 * USUAL)

    assert in_cents.tau == pytest.approx(1e5 * found.tau)


def test_the_greedy_reply_is_presumed_to_be_better_than_votes() -> None:
    q, votes, greedy = np.random.default_rng(0).normal(size=(3, 5))

    found = fitted_weights(q, votes, greedy, np.zeros(5), usual=USUAL)

    assert found.greedy == pytest.approx(2.0, rel=0.2)


def test_a_greedy_reply_that_counts_alone_keeps_q_beside_it() -> None:
    q, votes, greedy = np.random.default_rng(0).normal(size=(3, 2_000))

    found = fitted_weights(q, votes, greedy, q + greedy - votes, usual=USUAL)

    assert found.greedy == pytest.approx(MOST_WEIGHT)
    assert 0 < found.tau < 1


@pytest.mark.parametrize(("earned", "tau"), [(1.0, USUAL), (0.5, USUAL / 0.5), (-1.0, MOST_TAU)])
def test_untold_draws_have_presumed_weights_beside_a_q_that_earned_something(earned: float, tau: float) -> None:
    q = np.random.default_rng(0).normal(size=2_000)

    for votes in (NOTHING, np.zeros(2_000)):
        found = fitted_weights(q, votes, NOTHING, earned * q, usual=USUAL)

        assert found.tau == pytest.approx(tau, rel=0.1)
        assert found.greedy == pytest.approx(2.0)


def test_advantages_of_which_nothing_is_known_leave_the_choice_to_q() -> None:
    nothing = np.zeros(5)

    assert fitted_weights(nothing, NOTHING[:5], NOTHING[:5], nothing, usual=0.0) == Weights(0.0)

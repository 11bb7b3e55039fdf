"""A temperature is fitted toward the prior, and away from it only where Q pays beyond its error."""

import math
from random import Random

import pytest

from qguide.training.algorithms.posterior_temperature import TAUS, ValuedDecision, fit_tau


def decisions(n: int, *, q_right: float, prior_right: float, seed: int = 0) -> list[ValuedDecision]:
    """Two candidates each: Q and the prior prefer the better one with these probabilities."""
    rng = Random(seed)
    made = []
    for number in range(n):
        q = (0.6, 0.4) if rng.random() < q_right else (0.4, 0.6)
        shares = (0.8, 0.2) if rng.random() < prior_right else (0.2, 0.8)
        made.append(ValuedDecision(str(number // 2), q, [math.log(p) for p in shares], (1.0, 0.0)))
    return made


def test_a_q_model_that_knows_more_gets_a_small_tau() -> None:
    fit = fit_tau(decisions(200, q_right=0.95, prior_right=0.5))
    assert fit is not None
    assert fit.tau <= 0.1
    assert fit.point.outcome == pytest.approx(0.95, abs=0.05)


def test_a_q_model_at_chance_leaves_the_prior_alone() -> None:
    fit = fit_tau(decisions(200, q_right=0.5, prior_right=0.8))
    assert fit is not None
    assert fit.tau == max(TAUS)


def test_a_lift_within_the_error_is_none() -> None:
    fit = fit_tau(decisions(40, q_right=0.72, prior_right=0.7))
    assert fit is not None
    assert fit.tau == max(TAUS)


def test_both_are_better_than_either() -> None:
    """Q is sure of a third of the decisions, and the prior knows the others."""
    made = [
        ValuedDecision(
            str(n),
            (0.9, 0.1) if n % 3 == 0 else (0.49, 0.51),
            [math.log(p) for p in ((0.4, 0.6) if n % 3 == 0 else (0.8, 0.2))],
            (1.0, 0.0),
        )
        for n in range(60)
    ]
    fit = fit_tau(made)
    assert fit is not None
    assert fit.point.outcome == 1.0
    assert {point.tau: point.outcome for point in fit.curve}[0.0] == pytest.approx(1 / 3)
    assert fit.curve[-1].outcome == pytest.approx(2 / 3)


def test_decisions_of_one_task_count_once() -> None:
    one = [ValuedDecision("a", (1.0, 0.0), (0.0, 0.0), (1.0, 0.0))] * 30
    other = [ValuedDecision("b", (1.0, 0.0), (0.0, 0.0), (0.0, 1.0))]
    fit = fit_tau([*one, *other])
    assert fit is not None
    assert (fit.decisions, fit.tasks) == (31, 2)
    assert all(point.outcome == 0.5 for point in fit.curve)


def test_decisions_that_inform_nothing_fit_nothing() -> None:
    same = [ValuedDecision(str(n), (1.0, 0.0), (0.0, 0.0), (0.5, 0.5)) for n in range(100)]
    assert fit_tau(same) is None
    assert fit_tau(decisions(9, q_right=1, prior_right=0)) is None


def test_candidates_that_tie_count_by_their_mean() -> None:
    decision = ValuedDecision("a", (0.5, 0.5, 0.1), (-1.0, -1.0, -1.0), (1.0, 0.0, 0.0))
    assert decision.outcome(0.0) == decision.outcome(1.0) == 0.5

"""A prior is fitted by votes, or by likelihoods where they are known and choose better."""

import pytest

from qguide.training.algorithms.choice_quality import ScoredChoice
from qguide.training.algorithms.posterior_temperature import TAUS
from qguide.training.licence.assessment import fitted_prior


def choices(
    *,
    q: tuple[float, float] = (0.5, 0.5),
    draws: tuple[int, int] = (1, 1),
    logprobs: tuple[float | None, ...] = (),
    n: int = 20,
) -> list[ScoredChoice]:
    """Decisions whose first candidate is the better one."""
    return [
        ScoredChoice(q, (1, 9), (True, True), draws=draws, values=(1, 0), logprobs=logprobs, task=str(i))
        for i in range(n)
    ]


def test_q_that_is_right_where_votes_are_wrong_gets_a_small_tau() -> None:
    prior = fitted_prior(choices(q=(0.6, 0.5), draws=(1, 4)))
    assert prior is not None
    assert (prior.by, prior.decisions, prior.tasks) == ("votes", 20, 20)
    assert 0.01 <= prior.tau <= 0.1
    assert prior.curve[0].outcome == 1.0
    assert prior.curve[-1].outcome == 0.0


def test_votes_that_are_right_where_q_is_wrong_leave_no_tau_to_q() -> None:
    prior = fitted_prior(choices(q=(0.5, 0.6), draws=(4, 1)))
    assert prior is not None
    assert prior.tau == max(TAUS)


def test_likelihoods_are_taken_where_they_choose_better() -> None:
    told = choices(draws=(1, 1), logprobs=(-1.0, -3.0))
    prior = fitted_prior(told)
    assert prior is not None
    assert (prior.by, prior.curve[-1].outcome) == ("likelihood", 1.0)
    assert fitted_prior([*told, *choices(logprobs=(-1.0, None))]).by == "votes"  # type: ignore[union-attr]


def test_votes_that_choose_as_well_are_kept() -> None:
    prior = fitted_prior(choices(draws=(4, 1), logprobs=(-1.0, -3.0)))
    assert prior is not None
    assert prior.by == "votes"
    assert prior.curve[-1].outcome == pytest.approx(1.0)


def test_too_few_decisions_fit_no_prior() -> None:
    assert fitted_prior(choices(n=9)) is None
    assert fitted_prior([]) is None

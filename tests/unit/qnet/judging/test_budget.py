"""A judge's budget ends within an hour, or for good."""

import pytest

from qnet.errors import JudgeBudgetError
from qnet.judging.budget import JudgeBudget
from qnet.judging.settings import JudgeSettings
from tests.support.clock import Clock


def budget(clock: Clock, **limits: int) -> JudgeBudget:
    return JudgeBudget("j", JudgeSettings.model_validate(limits), clock=clock)


def test_requests_are_refused_until_the_hour_is_over() -> None:
    clock = Clock()
    own = budget(clock, calls_per_hour=2)
    own.admit()
    clock.now_s += 600
    own.admit()
    with pytest.raises(JudgeBudgetError, match="used 2 of its calls_per_hour of 2") as error:
        own.admit()
    assert error.value.retry_after_s == pytest.approx(3060)
    clock.now_s += 3060
    own.admit()
    with pytest.raises(JudgeBudgetError):
        own.admit()


def test_tokens_count_when_they_are_known() -> None:
    own = budget(Clock(), tokens_per_hour=100)
    own.admit()
    own.admit()
    own.spend(1_200)
    with pytest.raises(JudgeBudgetError, match="used 1,200 of its tokens_per_hour of 100"):
        own.admit()


@pytest.mark.parametrize("limits", [{"total_calls": 1}, {"total_tokens": 5}])
def test_a_total_is_never_given_back(limits: dict[str, int]) -> None:
    clock = Clock()
    own = budget(clock, **limits)
    own.admit()
    own.spend(5)
    clock.now_s += 1e6
    with pytest.raises(JudgeBudgetError, match=f"{next(iter(limits))} of .*; raise it and restart"):
        own.admit()


def test_without_limits_nothing_is_refused() -> None:
    own = budget(Clock())
    for _ in range(1_000):
        own.admit()
        own.spend(10_000)

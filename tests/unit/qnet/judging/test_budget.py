"""A judge's budget ends within an hour, or for good."""

import pytest

from qguide.qnet.errors import JudgeBudgetError
from qguide.qnet.judging.budget import JudgeBudget
from qguide.qnet.judging.settings import JudgeSettings
from tests.support.clock import Clock


def budget(clock: Clock, **limits: int) -> JudgeBudget:
    return JudgeBudget("j", JudgeSettings.model_validate(limits), clock=clock)


def send(own: JudgeBudget, caller: str = "") -> None:
    own.admit(1, caller=caller)
    own.send(caller=caller)


def test_requests_are_refused_until_the_hour_is_over() -> None:
    clock = Clock()
    own = budget(clock, calls_per_hour=2)
    send(own)
    clock.now_s += 600
    send(own)
    with pytest.raises(JudgeBudgetError, match=r"used 2 .*calls_per_hour of 2; .*3060 s") as error:
        send(own)
    assert error.value.retry_after_s == pytest.approx(3060)
    clock.now_s += 3060
    send(own)
    with pytest.raises(JudgeBudgetError):
        send(own)


def test_tokens_count_when_they_are_known() -> None:
    own = budget(Clock(), tokens_per_hour=100)
    send(own)
    send(own)
    own.spend(1_200)
    with pytest.raises(JudgeBudgetError, match=r"used 1,200 .*tokens_per_hour of 100; .*3660 s"):
        send(own)


@pytest.mark.parametrize("limits", [{"total_calls": 1}, {"total_tokens": 5}])
def test_a_total_is_never_given_back(limits: dict[str, int]) -> None:
    clock = Clock()
    own = budget(clock, **limits)
    send(own)
    own.spend(5)
    clock.now_s += 1e6
    with pytest.raises(JudgeBudgetError, match=f"{next(iter(limits))} of .*; .*restart$"):
        send(own)


def test_without_limits_nothing_is_refused() -> None:
    own = budget(Clock())
    for _ in range(1_000):
        send(own)
        own.spend(10_000)


@pytest.mark.parametrize("name", ["calls_per_hour", "total_calls"])
def test_the_requests_of_a_step_are_admitted_together_or_not_at_all(name: str) -> None:
    own = budget(Clock(), **{name: 3})
    own.admit(2)
    with pytest.raises(JudgeBudgetError, match=f"used 2 .*{name} of 3, .*needs 2"):
        own.admit(2)
    own.release(1)
    own.send()
    own.admit(2)


def test_a_step_waits_until_as_many_requests_are_an_hour_old() -> None:
    clock = Clock()
    own = budget(clock, calls_per_hour=3)
    for _ in range(3):
        send(own)
        clock.now_s += 600
    with pytest.raises(JudgeBudgetError) as error:
        own.admit(2)
    assert error.value.retry_after_s == pytest.approx(600 + 3660 - 1800)


def test_a_step_larger_than_a_limit_is_not_told_to_wait() -> None:
    with pytest.raises(JudgeBudgetError, match=r"used 0 .*calls_per_hour of 2, .*needs 3; .*restart$") as error:
        budget(Clock(), calls_per_hour=2).admit(3)
    assert error.value.retry_after_s is None


def test_a_key_that_has_used_up_its_hour_leaves_the_others_theirs() -> None:
    own = budget(Clock(), calls_per_hour=2, tokens_per_hour=100)
    for _ in range(2):
        send(own, "eve")
    with pytest.raises(JudgeBudgetError, match=r"used 2 .*calls_per_hour of 2 .*eve;"):
        send(own, "eve")
    send(own, "ada")
    own.spend(100, caller="ada")
    with pytest.raises(JudgeBudgetError, match=r"tokens_per_hour of 100 .*ada;"):
        send(own, "ada")
    send(own, "bob")


@pytest.mark.parametrize("what", ["calls", "tokens"])
def test_all_keys_together_have_an_hour_too(what: str) -> None:
    clock = Clock()
    own = budget(clock, **{f"total_{what}_per_hour": 2})
    for key in ("ada", "bob"):
        send(own, key)
        own.spend(1, caller=key)
    with pytest.raises(JudgeBudgetError, match=f"used 2 .*total_{what}_per_hour of 2;") as no:
        send(own, "eve")
    assert no.value.retry_after_s == pytest.approx(3660)
    clock.now_s += 3660
    send(own, "eve")


def test_what_is_set_aside_counts_for_its_key_until_another_sends_it() -> None:
    own = budget(Clock(), calls_per_hour=1)
    own.admit(1, caller="ada")
    with pytest.raises(JudgeBudgetError) as error:
        own.admit(1, caller="ada")
    assert error.value.retry_after_s == pytest.approx(3660)
    own.hand_over(of="ada", to="bob")
    own.send(caller="bob")
    own.admit(1, caller="ada")
    with pytest.raises(JudgeBudgetError, match="bob;"):
        own.admit(1, caller="bob")

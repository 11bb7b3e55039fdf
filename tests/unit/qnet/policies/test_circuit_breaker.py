"""The circuit breaker."""

import pytest

from qnet.policies.circuit_breaker import CircuitBreaker


class Clock:
    """Shows what it is set to."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def breaker(clock: Clock) -> CircuitBreaker:
    return CircuitBreaker(failures=2, open_s=10.0, clock=clock)


def fail(breaker: CircuitBreaker, times: int) -> None:
    for _ in range(times):
        assert breaker.wait_s == 0
        breaker.fail(breaker.admit())


def test_failures_in_a_row_open_it(breaker: CircuitBreaker, clock: Clock) -> None:
    fail(breaker, 2)
    clock.now_s += 4
    assert breaker.is_open
    assert breaker.wait_s == pytest.approx(6.0)


def test_a_success_between_failures_keeps_it_closed(breaker: CircuitBreaker) -> None:
    fail(breaker, 1)
    breaker.succeed(breaker.admit())
    fail(breaker, 1)
    assert breaker.wait_s == 0


def test_one_probe_goes_first_and_its_success_closes_it(
    breaker: CircuitBreaker, clock: Clock
) -> None:
    fail(breaker, 2)
    clock.now_s += 10
    assert breaker.wait_s == 0
    probe = breaker.admit()
    assert breaker.wait_s > 0
    breaker.succeed(probe)
    assert not breaker.is_open
    breaker.admit()
    assert breaker.wait_s == 0


def test_a_failing_probe_opens_it_again(breaker: CircuitBreaker, clock: Clock) -> None:
    fail(breaker, 2)
    clock.now_s += 10
    fail(breaker, 1)
    assert breaker.wait_s == pytest.approx(10.0)


def test_a_probe_that_is_given_up_makes_room_for_another(
    breaker: CircuitBreaker, clock: Clock
) -> None:
    fail(breaker, 2)
    clock.now_s += 10
    breaker.abandon(breaker.admit())
    assert breaker.wait_s == 0


@pytest.mark.parametrize("end", ["abandon", "fail", "succeed"])
def test_an_older_call_speaks_neither_for_the_probe_nor_of_now(
    breaker: CircuitBreaker, clock: Clock, end: str
) -> None:
    old = breaker.admit()
    fail(breaker, 2)
    clock.now_s += 10
    probe = breaker.admit()
    getattr(breaker, end)(old)
    assert breaker.is_open
    assert breaker.wait_s == pytest.approx(10.0), "the probe is still under way"
    breaker.succeed(probe)
    assert breaker.wait_s == 0

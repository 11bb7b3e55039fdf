"""The circuit breaker."""

import asyncio

import pytest

from qguide.qnet.policies.circuits import Admission, CircuitBreaker, CircuitOpenError
from qguide.qnet.work import all_of, one_group
from tests.support.clock import Clock


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def breaker(clock: Clock) -> CircuitBreaker:
    return CircuitBreaker(failures=2, open_s=10.0, clock=clock)


async def fail(breaker: CircuitBreaker, times: int) -> None:
    for _ in range(times):
        breaker.fail(await breaker.admit())


async def test_failures_in_a_row_open_it(breaker: CircuitBreaker, clock: Clock) -> None:
    await fail(breaker, 2)
    clock.now_s += 4
    assert breaker.is_open
    with pytest.raises(CircuitOpenError) as raised:
        await breaker.admit()
    assert raised.value.wait_s == breaker.wait_s == pytest.approx(6.0)


async def test_failures_of_one_group_count_once_until_a_success(breaker: CircuitBreaker) -> None:
    with one_group():
        await fail(breaker, 3)
        assert not breaker.is_open
        breaker.succeed(await breaker.admit())
        await fail(breaker, 1)
    assert not breaker.is_open
    with one_group():
        await fail(breaker, 1)
    assert breaker.is_open


async def test_a_success_between_failures_keeps_it_closed(breaker: CircuitBreaker) -> None:
    await fail(breaker, 1)
    breaker.succeed(await breaker.admit())
    await fail(breaker, 1)
    assert breaker.wait_s == 0


async def test_one_probe_goes_first_and_its_success_closes_it(breaker: CircuitBreaker, clock: Clock) -> None:
    await fail(breaker, 2)
    clock.now_s += 10
    probe = await breaker.admit()
    with pytest.raises(CircuitOpenError):
        await breaker.admit()
    breaker.succeed(probe)
    assert not breaker.is_open
    await breaker.admit()
    assert breaker.wait_s == 0


async def test_a_failing_probe_opens_it_again(breaker: CircuitBreaker, clock: Clock) -> None:
    await fail(breaker, 2)
    clock.now_s += 10
    await fail(breaker, 1)
    assert breaker.wait_s == pytest.approx(10.0)


async def test_a_probe_that_is_given_up_makes_room_for_another(breaker: CircuitBreaker, clock: Clock) -> None:
    await fail(breaker, 2)
    clock.now_s += 10
    breaker.abandon(await breaker.admit())
    assert breaker.wait_s == 0


async def test_a_probe_that_takes_long_does_not_keep_others_from_probing(breaker: CircuitBreaker, clock: Clock) -> None:
    await fail(breaker, 2)
    clock.now_s += 10
    slow = await breaker.admit()
    clock.now_s += 10
    quick = await breaker.admit()
    breaker.abandon(slow)
    assert breaker.wait_s == pytest.approx(10.0), "the other probe is still under way"
    breaker.succeed(quick)
    assert not breaker.is_open


@pytest.mark.parametrize("end", ["abandon", "fail", "succeed"])
async def test_an_older_call_speaks_neither_for_the_probe_nor_of_now(
    breaker: CircuitBreaker, clock: Clock, end: str
) -> None:
    old = await breaker.admit()
    await fail(breaker, 2)
    clock.now_s += 10
    probe = await breaker.admit()
    getattr(breaker, end)(old)
    assert breaker.is_open
    assert breaker.wait_s == pytest.approx(10.0), "the probe is still under way"
    breaker.succeed(probe)
    assert breaker.wait_s == 0


async def let_others_run() -> None:
    """Let every other task run as far as it can; counted in turns of the loop, not in seconds."""
    for _ in range(20):
        await asyncio.sleep(0)


class Draw:
    """Concurrent calls of one decision; the first to be admitted waits for its outcome."""

    def __init__(self, breaker: CircuitBreaker) -> None:
        self.breaker = breaker
        self.admitted: list[Admission] = []
        self.outcome: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def run(self, *, nested: bool = False) -> None:
        calls = [self.call() for _ in range(3)]
        await all_of([all_of([call]) for call in calls] if nested else calls)

    async def call(self) -> None:
        self.admitted.append(await self.breaker.admit())
        await self.outcome


@pytest.mark.parametrize("nested", [False, True])
async def test_calls_that_are_drawn_with_the_probe_wait_for_it(
    breaker: CircuitBreaker, clock: Clock, nested: bool
) -> None:
    await fail(breaker, 2)
    clock.now_s += 10
    draw = Draw(breaker)
    running = asyncio.create_task(draw.run(nested=nested))
    await let_others_run()
    [probe] = draw.admitted
    with pytest.raises(CircuitOpenError):
        await breaker.admit()  # of another caller, who is not made to wait
    clock.now_s += 10
    other = await breaker.admit()
    breaker.abandon(other)
    await let_others_run()
    assert draw.admitted == [probe], "they wait for their own probe, however long it takes"
    breaker.succeed(probe)
    draw.outcome.set_result(None)
    await running
    assert len(draw.admitted) == 3


async def test_calls_that_wait_for_a_failing_probe_are_refused(breaker: CircuitBreaker, clock: Clock) -> None:
    await fail(breaker, 2)
    clock.now_s += 10
    draw = Draw(breaker)
    running = asyncio.create_task(draw.run())
    await let_others_run()
    breaker.fail(draw.admitted[0])
    with pytest.raises(CircuitOpenError):
        await running


async def test_a_draw_that_is_cancelled_gives_the_probe_to_the_next_caller(
    breaker: CircuitBreaker, clock: Clock
) -> None:
    await fail(breaker, 2)
    clock.now_s += 10
    draw = Draw(breaker)
    running = asyncio.create_task(draw.run())
    await let_others_run()
    running.cancel()
    breaker.abandon(draw.admitted[0])
    await asyncio.gather(running, return_exceptions=True)
    assert len(draw.admitted) == 1
    assert breaker.wait_s == 0

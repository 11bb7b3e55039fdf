"""Circuits of one upstream: each caller's own, and one for all."""

import pytest

from qguide.qnet.policies.circuits import CircuitOpenError, UpstreamCall, UpstreamCircuits
from qguide.qnet.work import Tenant, working_for
from tests.support.clock import Clock

OPEN_S = 10.0


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def circuits(clock: Clock) -> UpstreamCircuits:
    return UpstreamCircuits(failures=2, open_s=OPEN_S, clock=clock)


async def call(circuits: UpstreamCircuits, key: str) -> UpstreamCall:
    with working_for(Tenant(key)):
        return await circuits.admit()


async def fail(circuits: UpstreamCircuits, key: str, times: int = 2) -> None:
    for _ in range(times):
        circuits.fail(await call(circuits, key))


async def answer(circuits: UpstreamCircuits, key: str) -> None:
    circuits.succeed(await call(circuits, key))


async def test_one_keys_failures_close_the_upstream_to_that_key_alone(circuits: UpstreamCircuits) -> None:
    await fail(circuits, "eve")
    with pytest.raises(CircuitOpenError) as refused:
        await call(circuits, "eve")
    assert refused.value.caller == "eve"
    for _ in range(5):
        await answer(circuits, "ada")
    assert not circuits.are_open


async def test_a_caller_without_a_key_is_everybody(circuits: UpstreamCircuits) -> None:
    await fail(circuits, "")
    assert circuits.are_open
    with pytest.raises(CircuitOpenError) as refused:
        await call(circuits, "")
    assert refused.value.caller == ""


@pytest.mark.parametrize("is_well", [None, True])
async def test_however_many_keys_fail_it_closes_to_nobody_else_while_the_health_check_passes(
    circuits: UpstreamCircuits, is_well: bool | None
) -> None:
    """They may be one person with several keys, whose requests are at fault."""
    if is_well is not None:
        circuits.checked(is_well=is_well)
    for key in ("eve", "mallory", "trudy"):
        await fail(circuits, key)
    assert not circuits.are_open
    await answer(circuits, "ada")


async def test_a_failing_key_and_the_health_check_close_it_to_all_until_one_call_is_answered(
    circuits: UpstreamCircuits, clock: Clock
) -> None:
    circuits.checked(is_well=False)
    await fail(circuits, "ada")
    assert circuits.are_open
    with pytest.raises(CircuitOpenError) as refused:
        await call(circuits, "eve")
    assert refused.value.caller is None
    clock.now_s += OPEN_S
    circuits.checked(is_well=False)  # a check puts no probe off
    probe = await call(circuits, "eve")
    with pytest.raises(CircuitOpenError):
        await call(circuits, "dan")
    circuits.succeed(probe)
    assert not circuits.are_open
    for key in ("ada", "bob", "dan"):
        await answer(circuits, key)


async def test_who_is_refused_reads_the_last_failure_of_the_circuit_that_refuses(circuits: UpstreamCircuits) -> None:
    circuits.checked(is_well=False)
    failures = (("ada", "answered with 500"), ("ada", "was silent for 9 s"), ("eve", "answered with 502"))
    calls = [(await call(circuits, key), failure) for key, failure in failures]
    for failing, failure in calls:
        failing.failure = failure
        circuits.fail(failing)
    for key, failure in (("ada", "was silent for 9 s"), ("dan", "answered with 502")):
        with pytest.raises(CircuitOpenError) as refused:
            await call(circuits, key)
        assert refused.value.failure == failure


async def test_a_probe_that_fails_keeps_it_closed_to_all(circuits: UpstreamCircuits, clock: Clock) -> None:
    circuits.checked(is_well=False)
    await fail(circuits, "ada")
    clock.now_s += OPEN_S
    await fail(circuits, "eve", 1)
    for key in ("ada", "dan"):
        with pytest.raises(CircuitOpenError):
            await call(circuits, key)


async def test_a_health_check_that_passes_opens_it_to_all_at_once(circuits: UpstreamCircuits) -> None:
    circuits.checked(is_well=False)
    await fail(circuits, "eve")
    circuits.checked(is_well=True)
    await answer(circuits, "ada")
    with pytest.raises(CircuitOpenError) as refused:  # its own stays as it is
        await call(circuits, "eve")
    assert refused.value.caller == "eve"


async def test_a_failing_health_check_closes_it_to_nobody_while_calls_are_answered(circuits: UpstreamCircuits) -> None:
    await fail(circuits, "eve")
    await answer(circuits, "ada")
    circuits.checked(is_well=False)  # its list of models fails, and nothing else
    await answer(circuits, "ada")
    await fail(circuits, "mallory")
    with pytest.raises(CircuitOpenError) as refused:
        await call(circuits, "ada")
    assert refused.value.caller is None


async def test_a_health_check_that_comes_after_one_keys_failures_closes_it_too(circuits: UpstreamCircuits) -> None:
    await fail(circuits, "eve")
    circuits.checked(is_well=False)
    with pytest.raises(CircuitOpenError):
        await call(circuits, "ada")


async def test_a_key_whose_calls_take_too_long_is_refused_only_where_nobody_is_answered(
    circuits: UpstreamCircuits,
) -> None:
    long = [await call(circuits, "eve") for _ in range(4)]
    await answer(circuits, "ada")
    for one in long:
        circuits.time_out(one)
    await answer(circuits, "eve")
    for one in [await call(circuits, "eve") for _ in range(2)]:
        circuits.time_out(one)
    with pytest.raises(CircuitOpenError):
        await call(circuits, "eve")

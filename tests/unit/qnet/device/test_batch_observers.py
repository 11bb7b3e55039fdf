"""Observers of a batch learn its waits and its times, whatever becomes of its callers."""

import asyncio
import logging
from time import perf_counter

import pytest

from qnet.device.device_thread import DeviceThread
from qnet.device.device_worker import BatchRun, DeviceWorker, Ending
from qnet.errors import ScorerUnavailableError
from tests.support.device_work import Gated


async def test_a_batch_is_observed_before_its_callers_have_their_results(
    thread: DeviceThread, gated: Gated
) -> None:
    seen: list[BatchRun] = []
    waits: list[tuple[float, Ending]] = []
    worker = DeviceWorker(
        thread, gated, observe=seen.append, observe_wait=lambda *told: waits.append(told)
    )
    first = asyncio.create_task(worker.submit(0))
    await gated.is_busy()
    others = [asyncio.create_task(worker.submit(n)) for n in (1, 2)]
    await asyncio.sleep(0)  # they are in the queue now
    await asyncio.sleep(0.02)
    gated.gate.set()
    await first
    assert (len(seen), len(waits)) >= (1, 1)
    await asyncio.gather(*others)
    assert [batch.requests for batch in seen] == [1, 2]
    assert seen[0].run_s >= 0.02
    assert min(waited_s for waited_s, _ in waits[1:]) >= 0.02
    assert {ended for _, ended in waits} == {"answered"}


async def test_requests_without_an_answer_have_waited_too(
    thread: DeviceThread, gated: Gated
) -> None:
    waits: dict[Ending, float] = {}
    worker = DeviceWorker(
        thread, gated, observe_wait=lambda waited_s, ended: waits.update({ended: waited_s})
    )
    started = perf_counter()
    running = asyncio.create_task(worker.submit(-1))
    await gated.is_busy()
    began_within_s = perf_counter() - started
    with pytest.raises(ScorerUnavailableError):
        await worker.submit(1, timeout_s=0.02)
    assert waits.pop("given_up") >= 0.02
    cancelled = asyncio.create_task(worker.submit(2))
    await asyncio.sleep(0)  # it is in the queue now
    await asyncio.sleep(0.02)
    cancelled.cancel()
    with pytest.raises(asyncio.CancelledError):
        await cancelled
    assert waits.pop("given_up") >= 0.02
    gated.gate.set()
    with pytest.raises(ValueError, match="negative"):
        await running
    assert set(waits) == {"failed"}
    assert waits["failed"] < began_within_s  # what ran on the device is no waiting


async def test_what_runs_when_its_caller_leaves_has_waited_only_until_then(
    thread: DeviceThread, gated: Gated
) -> None:
    waits: list[tuple[float, Ending]] = []
    worker = DeviceWorker(thread, gated, observe_wait=lambda *told: waits.append(told))
    started = perf_counter()
    left = asyncio.create_task(worker.submit(1, timeout_s=1))
    await gated.is_busy()
    began_within_s = perf_counter() - started
    with pytest.raises(ScorerUnavailableError):
        await left
    gated.gate.set()
    assert await worker.submit(2) == 4
    assert [ended for _, ended in waits] == ["given_up", "answered"]
    assert waits[0][0] < began_within_s


async def test_observers_that_fail_cost_no_answer_and_say_so_once(
    thread: DeviceThread, gated: Gated, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*_: object) -> None:
        raise ValueError("no such metric")

    gated.gate.set()
    worker = DeviceWorker(thread, gated, observe=broken, observe_wait=broken)
    with caplog.at_level(logging.ERROR):
        assert [await worker.submit(n) for n in (1, 2, 3)] == [2, 4, 6]
    assert thread.healthy
    assert [r.message for r in caplog.records] == ["what observes the device failed"] * 2

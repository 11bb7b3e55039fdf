"""Observers of a batch learn its waits and its times, whatever becomes of its callers."""

import asyncio
import logging
from collections.abc import AsyncIterator
from concurrent.futures import Future
from contextlib import asynccontextmanager
from time import perf_counter
from typing import NamedTuple

import pytest

from qguide.qnet.device.device_thread import DeviceThread, DeviceWorker, Ending
from qguide.qnet.errors import OverloadedError, ScorerUnavailableError
from tests.support.device_work import Gated


class Waiting(NamedTuple):
    """A request that waits for its preparation."""

    request: asyncio.Task[int]
    prepared: Future[int]


async def test_a_batch_is_observed_before_its_callers_have_their_results(thread: DeviceThread, gated: Gated) -> None:
    seen: list[tuple[int, float]] = []
    waits: list[tuple[float, Ending]] = []
    worker = DeviceWorker(
        thread, gated, observe=lambda *told: seen.append(told), observe_wait=lambda *told: waits.append(told)
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
    assert [requests for requests, _ in seen] == [1, 2]
    assert seen[0][1] >= 0.02
    assert min(waited_s for waited_s, _ in waits[1:]) >= 0.02
    assert {ended for _, ended in waits} == {"answered"}


async def test_requests_without_an_answer_have_waited_too(thread: DeviceThread, gated: Gated) -> None:
    waits: dict[Ending, float] = {}
    worker = DeviceWorker(thread, gated, observe_wait=lambda waited_s, ended: waits.update({ended: waited_s}))
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


async def test_what_runs_when_its_caller_leaves_has_waited_only_until_then(thread: DeviceThread, gated: Gated) -> None:
    waits: list[tuple[float, Ending]] = []
    worker = DeviceWorker(thread, gated, observe_wait=lambda *told: waits.append(told))
    started = perf_counter()
    left = asyncio.create_task(worker.submit(1, timeout_s=0.4))
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


@asynccontextmanager
async def never_queued(thread: DeviceThread, gated: Gated) -> AsyncIterator[Waiting]:
    """A request whose preparation has not ended; afterwards, nothing must have run or waited."""
    waits: list[Ending] = []
    worker = DeviceWorker(thread, gated, observe_wait=lambda _, ended: waits.append(ended))
    prepared: Future[int] = Future()
    request = asyncio.create_task(worker.submit(0, after=prepared))
    await asyncio.sleep(0)
    yield Waiting(request, prepared)
    assert (waits, gated.batches) == ([], [])


async def test_a_request_whose_preparation_fails_is_never_queued(thread: DeviceThread, gated: Gated) -> None:
    async with never_queued(thread, gated) as waiting:
        waiting.prepared.set_exception(LookupError("no such token"))
        with pytest.raises(LookupError, match="token"):
            await waiting.request


async def test_a_request_given_up_while_it_is_prepared_is_never_queued(thread: DeviceThread, gated: Gated) -> None:
    async with never_queued(thread, gated) as waiting:
        waiting.request.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting.request
        assert waiting.prepared.cancelled()


async def test_a_full_queue_refuses_a_request_once_it_is_prepared(gated: Gated) -> None:
    thread = DeviceThread(max_waiting=1)
    worker = DeviceWorker(thread, gated, max_batch=1)
    running = asyncio.create_task(worker.submit(0))
    await gated.is_busy()
    queued = asyncio.create_task(worker.submit(1))
    await asyncio.sleep(0)
    prepared: Future[int] = Future()
    refused = asyncio.create_task(worker.submit(2, after=prepared))
    await asyncio.sleep(0)
    prepared.set_result(0)
    with pytest.raises(OverloadedError, match=r"^1 requests"):
        await refused
    gated.gate.set()
    await asyncio.gather(running, queued)
    thread.close()

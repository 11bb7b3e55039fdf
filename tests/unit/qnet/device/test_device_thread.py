"""The device thread batches what waits, confines failures and never leaves a caller hanging."""

import asyncio
import logging
import threading
import weakref
from collections.abc import Iterator, Sequence
from time import perf_counter

import pytest
import torch

from qnet.device.device_loss import is_lost
from qnet.device.device_thread import DeviceThread
from qnet.device.device_worker import BatchRun, DeviceWorker, Ending
from qnet.device.scoring_worker import ScoringWorker
from qnet.errors import ScorerUnavailableError, UnscorableError
from qnet.scoring.value_head import ScriptedScorer
from qnet.types import Message, ScoreRequest, ScoreResult
from tests.support.queues import until_waiting


class Gated:
    """Doubles numbers, but only while its gate is open; remembers its batches."""

    def __init__(self) -> None:
        self.gate = threading.Event()
        self.entered = threading.Event()
        self.batches: list[list[int]] = []
        self.threads: set[str] = set()

    def __call__(self, numbers: Sequence[int]) -> list[int]:
        self.batches.append(list(numbers))
        self.threads.add(threading.current_thread().name)
        self.entered.set()
        assert self.gate.wait(10)
        if any(number < 0 for number in numbers):
            raise ValueError("negative")
        if 400 in numbers:
            raise UnscorableError("the trunk does not take this")
        if 503 in numbers:
            raise ScorerUnavailableError("the trunk is gone")
        if 666 in numbers:
            raise SystemExit
        return [2 * number for number in numbers]

    async def is_busy(self) -> None:
        """Wait until a batch is running."""
        await asyncio.to_thread(self.entered.wait, 10)


@pytest.fixture
def thread() -> Iterator[DeviceThread]:
    thread = DeviceThread(max_waiting=4)
    yield thread
    thread.close()


@pytest.fixture
def gated() -> Gated:
    return Gated()


async def test_what_gathers_during_a_batch_is_the_next_batch(
    thread: DeviceThread, gated: Gated
) -> None:
    worker = DeviceWorker(thread, gated, max_batch=3)
    first = asyncio.create_task(worker.submit(0))
    await gated.is_busy()
    others = [asyncio.create_task(worker.submit(n)) for n in (1, 2, 3, 4)]
    await asyncio.sleep(0)
    gated.gate.set()
    assert await asyncio.gather(first, *others) == [0, 2, 4, 6, 8]
    assert gated.batches == [[0], [1, 2, 3], [4]]


async def test_different_work_shares_the_thread_but_not_the_batch(thread: DeviceThread) -> None:
    one, other = Gated(), Gated()
    other.gate.set()
    first, second = DeviceWorker(thread, one), DeviceWorker(thread, other)
    tasks = [asyncio.create_task(first.submit(0))]
    await one.is_busy()
    tasks += [asyncio.create_task(w.submit(n)) for n, w in ((1, second), (2, first), (3, second))]
    await asyncio.sleep(0)
    one.gate.set()
    assert await asyncio.gather(*tasks) == [0, 2, 4, 6]
    assert one.batches == [[0], [2]]
    assert other.batches == [[1, 3]]
    assert one.threads == other.threads == {"qguide-device"}


async def test_a_cancelled_request_never_reaches_the_device(
    thread: DeviceThread, gated: Gated
) -> None:
    worker = DeviceWorker(thread, gated)
    first = asyncio.create_task(worker.submit(0))
    await gated.is_busy()
    dropped, kept = asyncio.create_task(worker.submit(1)), asyncio.create_task(worker.submit(2))
    await asyncio.sleep(0)
    dropped.cancel()
    await asyncio.sleep(0)
    gated.gate.set()
    assert [await first, await kept] == [0, 4]
    assert gated.batches == [[0], [2]]


async def test_a_full_queue_refuses_and_cancelled_requests_make_room(
    thread: DeviceThread, gated: Gated
) -> None:
    worker = DeviceWorker(thread, gated)
    running = asyncio.create_task(worker.submit(0))
    await gated.is_busy()
    waiting = [asyncio.create_task(worker.submit(n)) for n in range(4)]
    await asyncio.sleep(0)
    with pytest.raises(ScorerUnavailableError, match="4 requests wait"):
        await worker.submit(5)
    waiting[0].cancel()
    await asyncio.sleep(0)
    late = asyncio.create_task(worker.submit(6))
    await asyncio.sleep(0)
    gated.gate.set()
    assert await asyncio.gather(running, late, *waiting[1:]) == [0, 12, 2, 4, 6]


async def test_a_past_deadline_is_told_and_the_request_dropped(
    thread: DeviceThread, gated: Gated
) -> None:
    worker = DeviceWorker(thread, gated)
    running = asyncio.create_task(worker.submit(0))
    await gated.is_busy()
    with pytest.raises(ScorerUnavailableError, match=r"within 0\.01 s"):
        await worker.submit(1, timeout_s=0.01)
    gated.gate.set()
    assert await running == 0
    assert await worker.submit(2) == 4
    assert gated.batches == [[0], [2]]


async def test_a_failing_request_fails_alone(thread: DeviceThread, gated: Gated) -> None:
    worker = DeviceWorker(thread, gated)
    first = asyncio.create_task(worker.submit(0))
    await gated.is_busy()
    tasks = [asyncio.create_task(worker.submit(n)) for n in (1, -1, 2)]
    await asyncio.sleep(0)
    gated.gate.set()
    one, broken, two = await asyncio.gather(*tasks, return_exceptions=True)
    assert (await first, one, two) == (0, 2, 4)
    assert isinstance(broken, ValueError)
    assert thread.healthy


async def test_what_a_trunk_refuses_fails_alone(thread: DeviceThread, gated: Gated) -> None:
    worker = DeviceWorker(thread, gated)
    one, broken, two = await together(worker, gated, 1, 400, 2)
    assert (one, two) == (2, 4)
    assert str(broken) == "the trunk does not take this"


async def test_what_is_nobodys_fault_fails_the_batch_and_is_not_tried_one_by_one(
    thread: DeviceThread, gated: Gated
) -> None:
    worker = DeviceWorker(thread, gated)
    first = asyncio.create_task(worker.submit(0))
    await gated.is_busy()
    tasks = [asyncio.create_task(worker.submit(n)) for n in (1, 503, 2)]
    await asyncio.sleep(0)
    gated.gate.set()
    failures = await asyncio.gather(*tasks, return_exceptions=True)
    assert [str(failure) for failure in failures] == ["the trunk is gone"] * 3
    assert (await first, gated.batches) == (0, [[0], [1, 503, 2]])
    assert await worker.submit(3) == 6


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
async def test_a_dead_thread_fails_what_waits_and_is_not_healthy(
    thread: DeviceThread, gated: Gated
) -> None:
    worker = DeviceWorker(thread, gated, max_batch=1)
    killer = asyncio.create_task(worker.submit(666))
    await gated.is_busy()
    waiting = asyncio.create_task(worker.submit(1))
    await asyncio.sleep(0)
    gated.gate.set()
    for task in (killer, waiting):
        with pytest.raises(ScorerUnavailableError, match="the device thread"):
            await asyncio.wait_for(task, 10)
    await is_red(thread)
    with pytest.raises(ScorerUnavailableError, match="dead"):
        await worker.submit(1)


async def test_a_closed_thread_fails_what_waits(thread: DeviceThread, gated: Gated) -> None:
    worker = DeviceWorker(thread, gated)
    running = asyncio.create_task(worker.submit(3))
    await gated.is_busy()
    waiting = asyncio.create_task(worker.submit(1))
    await asyncio.sleep(0)
    closing = asyncio.create_task(asyncio.to_thread(thread.close))
    while thread.healthy:
        await asyncio.sleep(0.001)
    gated.gate.set()
    await closing
    assert await running == 6
    with pytest.raises(ScorerUnavailableError):
        await waiting


async def test_a_batch_may_close_its_own_thread(thread: DeviceThread, gated: Gated) -> None:
    await asyncio.wait_for(asyncio.wrap_future(thread.call(thread.close)), 10)
    assert not thread.healthy
    with pytest.raises(ScorerUnavailableError):
        await DeviceWorker(thread, gated).submit(1)


async def test_a_request_cancelled_while_the_thread_closes_keeps_no_other_waiting(
    thread: DeviceThread, gated: Gated
) -> None:
    worker = DeviceWorker(thread, gated)
    running = asyncio.create_task(worker.submit(3))
    await gated.is_busy()
    cancelled, waiting = (asyncio.create_task(worker.submit(n)) for n in (1, 2))
    await asyncio.sleep(0)
    cancelled.cancel()
    closing = asyncio.create_task(asyncio.to_thread(thread.close))
    while thread.healthy:
        await asyncio.sleep(0.001)
    gated.gate.set()
    await closing
    assert await running == 6
    with pytest.raises(ScorerUnavailableError, match="dead"):
        await asyncio.wait_for(waiting, 10)


async def test_a_scorer_is_awaited_one_request_at_a_time(thread: DeviceThread) -> None:
    worker = ScoringWorker(ScriptedScorer({"look": 1.0}, name="q"), thread)
    request = ScoreRequest((Message("user", "go"),), (Message("assistant", "look"),))
    result = await worker.score(request)
    assert result.q_values == (1.0,)
    assert worker.name == "q"
    assert worker.healthy


async def test_a_call_takes_its_turn_even_where_the_queue_is_full(
    thread: DeviceThread, gated: Gated
) -> None:
    worker = DeviceWorker(thread, gated)
    running = asyncio.create_task(worker.submit(0))
    await gated.is_busy()
    waiting = [asyncio.create_task(worker.submit(n)) for n in range(4)]
    await asyncio.sleep(0)
    seen = thread.call(lambda: (threading.current_thread().name, len(gated.batches)))
    gated.gate.set()
    assert await asyncio.wrap_future(seen) == ("qguide-device", 2)
    await asyncio.gather(running, *waiting)


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


class Small:
    """A device with room for so many numbers at once; knows whether a failed batch left any."""

    def __init__(self, room: int) -> None:
        self.room = room
        self.batches: list[list[int]] = []
        self.left_behind: list[bool] = []
        self._tensor: weakref.ref[torch.Tensor] | None = None

    def __call__(self, numbers: Sequence[int]) -> list[int]:
        self.batches.append(list(numbers))
        self.left_behind.append(self._tensor is not None and self._tensor() is not None)
        tensor = torch.tensor(numbers)
        self._tensor = weakref.ref(tensor)
        if sum(numbers) > self.room:
            raise torch.OutOfMemoryError("out of memory")
        doubled: list[int] = (2 * tensor).tolist()
        return doubled


async def test_a_batch_that_is_too_large_is_run_by_halves_in_a_memory_that_is_free_again(
    thread: DeviceThread, gated: Gated
) -> None:
    small = Small(room=2)
    worker = DeviceWorker(thread, small)
    assert await together(worker, gated, 1, 1, 1, 1) == [2, 2, 2, 2]
    assert small.batches == [[1, 1, 1, 1], [1, 1], [1, 1]]
    assert small.left_behind == [False] * 3


async def test_a_request_that_is_too_large_alone_fails_alone_and_leaves_nothing(
    thread: DeviceThread, gated: Gated
) -> None:
    small = Small(room=2)
    answers = await together(DeviceWorker(thread, small), gated, 3, 1, 1)
    assert isinstance(answers[0], torch.OutOfMemoryError)
    assert answers[1:] == [2, 2]
    assert small.left_behind == [False] * 3


def lost(*_: object) -> list[int]:
    """The error that CUDA raises for every call once the device is lost."""
    raise torch.AcceleratorError("CUDA error: an illegal memory access was encountered")


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
async def test_a_lost_device_is_the_end_of_its_thread(
    gated: Gated, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.accelerator, "synchronize", lost)
    thread = DeviceThread(is_lost=is_lost)
    worker = DeviceWorker[int, int](thread, lost)
    answers = await together(worker, gated, 1, 2)
    assert {str(answer) for answer in answers} == {
        "the device thread died of this batch (AcceleratorError); restart the server"
    }
    await is_red(thread)
    with pytest.raises(ScorerUnavailableError, match="dead"):
        await worker.submit(3)


def test_only_a_device_that_answers_no_more_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    refused = torch.AcceleratorError("CUDA error: invalid configuration argument")
    monkeypatch.setattr(torch.accelerator, "synchronize", lambda: None)
    assert not is_lost(refused)
    monkeypatch.setattr(torch.accelerator, "synchronize", lost)
    assert is_lost(refused)
    assert not is_lost(torch.OutOfMemoryError("CUDA out of memory"))


async def test_a_batch_has_as_much_work_as_it_may_and_none_overtakes(
    thread: DeviceThread, gated: Gated
) -> None:
    worker = DeviceWorker(thread, gated, cost=lambda number: number, max_cost=10)
    first = asyncio.create_task(worker.submit(0))
    await gated.is_busy()
    tasks = [asyncio.create_task(worker.submit(n)) for n in (6, 4, 11, 1)]
    await asyncio.sleep(0)
    gated.gate.set()
    await asyncio.gather(first, *tasks)
    assert gated.batches == [[0], [6, 4], [11], [1]]


class Batches(ScriptedScorer):
    """Remembers the size of every batch."""

    def __init__(self) -> None:
        super().__init__({})
        self.sizes: list[int] = []

    def score(self, requests: Sequence[ScoreRequest]) -> list[ScoreResult]:
        """Score."""
        self.sizes.append(len(requests))
        return super().score(requests)


async def test_what_was_scored_before_takes_no_room_in_a_batch(thread: DeviceThread) -> None:
    scorer = Batches()
    worker = ScoringWorker(scorer, thread, max_batch_tokens=120)
    look = Message("assistant", "look")
    cold = [ScoreRequest((Message("user", f"{i} " * 200),), (look,)) for i in range(3)]
    warm = [
        ScoreRequest((*request.history, look, Message("user", "you see " * 10)), (look,))
        for request in cold
    ]
    for requests in (cold, warm):
        release = threading.Event()
        thread.call(release.wait)
        tasks = [asyncio.create_task(worker.score(request)) for request in requests]
        await until_waiting(thread, len(tasks))
        release.set()
        await asyncio.gather(*tasks)
    assert scorer.sizes == [1, 1, 1, 3]


async def test_an_idle_thread_holds_on_to_nothing(thread: DeviceThread) -> None:
    gated = Gated()
    gated.gate.set()
    worker = DeviceWorker(thread, gated)
    assert await worker.submit(1) == 2
    await asyncio.to_thread(thread.call(lambda: None).result)
    alive = weakref.ref(gated)
    del worker, gated
    assert alive() is None


async def together(worker: DeviceWorker[int, int], gated: Gated, *numbers: int) -> list[object]:
    """Results or exceptions of these numbers in one batch."""
    busy = asyncio.create_task(DeviceWorker(worker.thread, gated).submit(0))
    await gated.is_busy()
    tasks = [asyncio.create_task(worker.submit(n)) for n in numbers]
    await asyncio.sleep(0)
    gated.gate.set()
    await busy
    return list(await asyncio.gather(*tasks, return_exceptions=True))


async def is_red(thread: DeviceThread) -> None:
    """Wait until the thread says that it is dead; nobody closes it."""
    async with asyncio.timeout(10):
        while thread.healthy:
            await asyncio.sleep(0.001)

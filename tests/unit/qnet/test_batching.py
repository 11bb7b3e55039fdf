"""The device thread batches what waits, confines failures and never leaves a caller hanging."""

import asyncio
import threading
import weakref
from collections.abc import Iterator, Sequence

import pytest

from qnet.batching import BatchTimes, DeviceThread, DeviceWorker, ScoringWorker
from qnet.errors import ScorerUnavailableError
from qnet.scoring import ScriptedScorer
from qnet.types import Message, ScoreRequest


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
    await asyncio.to_thread(thread.close)
    assert not thread.healthy
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
    seen: list[BatchTimes] = []
    worker = DeviceWorker(thread, gated, observe=seen.append)
    first = asyncio.create_task(worker.submit(0))
    await gated.is_busy()
    others = [asyncio.create_task(worker.submit(n)) for n in (1, 2)]
    await asyncio.sleep(0.02)
    gated.gate.set()
    await first
    await asyncio.gather(*others)
    assert [len(batch.waited_s) for batch in seen] == [1, 2]
    assert seen[0].run_s >= 0.02
    assert min(seen[1].waited_s) >= 0.02


async def test_an_idle_thread_holds_on_to_nothing(thread: DeviceThread) -> None:
    gated = Gated()
    gated.gate.set()
    worker = DeviceWorker(thread, gated)
    assert await worker.submit(1) == 2
    await asyncio.to_thread(thread.call(lambda: None).result)
    alive = weakref.ref(gated)
    del worker, gated
    assert alive() is None

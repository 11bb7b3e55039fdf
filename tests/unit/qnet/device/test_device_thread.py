"""The device thread batches what waits, and never leaves a caller hanging."""

import asyncio
import threading
import weakref
from collections.abc import Sequence

import pytest

from qguide.qnet.device.device_thread import DeviceThread, DeviceWorker
from qguide.qnet.device.scoring_worker import ScoringWorker
from qguide.qnet.errors import ScorerUnavailableError
from qguide.qnet.scoring.scripted import ScriptedScorer
from qguide.qnet.types import Message, ScoreRequest, ScoreResult
from tests.support.device_work import Gated, is_red
from tests.support.queues import until_waiting


async def test_what_gathers_during_a_batch_is_the_next_batch(thread: DeviceThread, gated: Gated) -> None:
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


async def test_a_cancelled_request_never_reaches_the_device(thread: DeviceThread, gated: Gated) -> None:
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


async def test_a_full_queue_refuses_and_cancelled_requests_make_room(thread: DeviceThread, gated: Gated) -> None:
    worker = DeviceWorker(thread, gated)
    running = asyncio.create_task(worker.submit(0))
    await gated.is_busy()
    waiting = [asyncio.create_task(worker.submit(n)) for n in range(4)]
    await asyncio.sleep(0)
    with pytest.raises(ScorerUnavailableError, match=r"^4 requests"):
        await worker.submit(5)
    waiting[0].cancel()
    await asyncio.sleep(0)
    late = asyncio.create_task(worker.submit(6))
    await asyncio.sleep(0)
    gated.gate.set()
    assert await asyncio.gather(running, late, *waiting[1:]) == [0, 12, 2, 4, 6]


async def test_a_past_deadline_is_told_and_the_request_dropped(thread: DeviceThread, gated: Gated) -> None:
    worker = DeviceWorker(thread, gated)
    running = asyncio.create_task(worker.submit(0))
    await gated.is_busy()
    with pytest.raises(ScorerUnavailableError, match=r"within 0\.01 s"):
        await worker.submit(1, timeout_s=0.01)
    gated.gate.set()
    assert await running == 0
    assert await worker.submit(2) == 4
    assert gated.batches == [[0], [2]]


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
async def test_a_dead_thread_fails_what_waits_and_is_not_healthy(thread: DeviceThread, gated: Gated) -> None:
    worker = DeviceWorker(thread, gated, max_batch=1)
    killer = asyncio.create_task(worker.submit(666))
    await gated.is_busy()
    waiting = asyncio.create_task(worker.submit(1))
    await asyncio.sleep(0)
    gated.gate.set()
    for task in (killer, waiting):
        with pytest.raises(ScorerUnavailableError, match=r"\(SystemExit\); restart|dead; restart"):
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


async def test_a_call_takes_its_turn_even_where_the_queue_is_full(thread: DeviceThread, gated: Gated) -> None:
    worker = DeviceWorker(thread, gated)
    running = asyncio.create_task(worker.submit(0))
    await gated.is_busy()
    waiting = [asyncio.create_task(worker.submit(n)) for n in range(4)]
    await asyncio.sleep(0)
    seen = thread.call(lambda: (threading.current_thread().name, len(gated.batches)))
    gated.gate.set()
    assert await asyncio.wrap_future(seen) == ("qguide-device", 2)
    await asyncio.gather(running, *waiting)


async def test_a_batch_has_as_much_work_as_it_may_and_none_overtakes(thread: DeviceThread, gated: Gated) -> None:
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
    warm = [ScoreRequest((*request.history, look, Message("user", "you see " * 10)), (look,)) for request in cold]
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

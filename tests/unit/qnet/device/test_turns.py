"""Long work is cut into slices: between two, others have their turn and work can be given up."""

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator, Sequence

import pytest

from qguide.qnet.device.device_thread import LONG_CHARACTERS, MOST_UNFINISHED, DeviceThread, DeviceWorker
from qguide.qnet.errors import OverloadedError
from qguide.qnet.sliced_scorer import Slices
from qguide.qnet.work import Tenant, TokenUsage, working_for
from tests.support.clock import Clock

Work = tuple[str, int]
"""A name, and how many slices it takes."""


class Sliced:
    """Runs work of so many slices, once its gate is open; remembers every slice in order."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.gate = threading.Event()
        self.entered = threading.Event()
        self.slices: list[str] = []
        self.broken_off: list[str] = []
        self.given_up: list[frozenset[int]] = []

    def __call__(self, batch: Sequence[Work]) -> Slices[list[str]]:
        """Each slice costs each request one token, and takes a second."""
        name = "+".join(name for name, _ in batch)
        try:
            for number in range(max(slices for _, slices in batch)):
                given_up = yield {i: TokenUsage(number + 1, 0) for i in range(len(batch))}
                self.given_up.append(given_up)
                self.slices.append(name)
                self.clock.now_s += 1
                self.entered.set()
                assert self.gate.wait(10)
        except GeneratorExit:
            self.broken_off.append(name)
            raise
        return [name for name, _ in batch]

    async def is_busy(self) -> None:
        """Wait until a slice runs."""
        assert await asyncio.to_thread(self.entered.wait, 10)


@pytest.fixture
def clock() -> Clock:
    """Each slice takes a second by it, however busy the machine is."""
    return Clock()


@pytest.fixture
def thread(clock: Clock) -> Iterator[DeviceThread]:
    thread = DeviceThread(max_waiting=8, clock=clock)
    yield thread
    thread.close()


@pytest.fixture
async def sliced(clock: Clock) -> AsyncIterator[Sliced]:
    sliced = Sliced(clock)
    yield sliced
    sliced.gate.set()


def ask(worker: DeviceWorker[Work, str], caller: str, name: str, slices: int) -> "asyncio.Task[str]":
    with working_for(Tenant(caller)):
        return asyncio.create_task(worker.submit((name, slices)))


async def test_a_short_request_waits_for_one_slice_of_anothers_long_work(thread: DeviceThread, sliced: Sliced) -> None:
    worker = DeviceWorker(thread, sliced, max_batch=1)
    long = [ask(worker, "ada", name, 3) for name in ("a1", "a2", "a3")]
    await sliced.is_busy()
    short = ask(worker, "bob", "b1", 1)
    await asyncio.sleep(0)
    sliced.gate.set()
    await asyncio.gather(short, *long)
    assert sliced.slices == ["a1", "b1", *["a1"] * 2, *["a2"] * 3, *["a3"] * 3]


async def test_a_callers_own_requests_stay_in_order(thread: DeviceThread, sliced: Sliced) -> None:
    worker = DeviceWorker(thread, sliced, max_batch=1)
    tasks = [ask(worker, "ada", "long", 3)]
    await sliced.is_busy()
    tasks.append(ask(worker, "ada", "short", 1))
    await asyncio.sleep(0)
    sliced.gate.set()
    await asyncio.gather(*tasks)
    assert sliced.slices == ["long"] * 3 + ["short"]


async def test_requests_of_several_callers_still_share_a_batch(thread: DeviceThread, sliced: Sliced) -> None:
    worker = DeviceWorker(thread, sliced)
    tasks = [ask(worker, "ada", "a1", 1)]
    await sliced.is_busy()
    tasks += [ask(worker, caller, caller, 1) for caller in ("bob", "carl")]
    await asyncio.sleep(0)
    sliced.gate.set()
    await asyncio.gather(*tasks)
    assert sliced.slices == ["a1", "bob+carl"]


async def begun_before_an_end(thread: DeviceThread, sliced: Sliced, callers: Sequence[str], *, short: str) -> list[str]:
    """Names in the order in which they began, until one had ended; of 9 slices, one of 1."""
    worker = DeviceWorker(thread, sliced, max_batch=1, cost=lambda work: work[1], max_cost=1)
    tasks = [ask(worker, callers[0], f"{callers[0]}-0", 9)]
    await sliced.is_busy()
    tasks += [ask(worker, who, f"{who}-{n}", 9) for n, who in enumerate(callers[1:], start=1)]
    tasks.append(ask(worker, short, "short", 1))
    await asyncio.sleep(0)
    sliced.gate.set()
    await asyncio.gather(*tasks)
    ends = [at for at, name in enumerate(sliced.slices) if sliced.slices[: at + 1].count(name) == 9]
    return list(dict.fromkeys(sliced.slices[: ends[0]]))


async def test_only_so_many_long_batches_are_unfinished_at_once(thread: DeviceThread, sliced: Sliced) -> None:
    callers = [f"caller{n}" for n in range(2 * MOST_UNFINISHED)]
    begun = await begun_before_an_end(thread, sliced, callers, short="bob")
    assert sorted(begun) == sorted([*(f"{who}-{n}" for n, who in enumerate(callers)), "short"])


async def test_of_one_caller_half_as_many_are_and_a_short_request_goes_first(
    thread: DeviceThread, sliced: Sliced
) -> None:
    begun = await begun_before_an_end(thread, sliced, ["ada"] * 7, short="bob")
    assert begun[:2] == ["ada-0", "short"]
    assert len(begun) <= 1 + MOST_UNFINISHED


async def test_work_of_a_caller_with_none_unfinished_waits_for_no_end_of_anothers(
    thread: DeviceThread, sliced: Sliced
) -> None:
    worker = DeviceWorker(thread, sliced, max_batch=1)
    flood = [ask(worker, f"caller{n}", f"flood-{n}", 9) for n in range(MOST_UNFINISHED)]
    await sliced.is_busy()
    own = ask(worker, "bob", "own", 9)
    await asyncio.sleep(0)
    sliced.gate.set()
    await asyncio.gather(own, *flood)
    assert sliced.slices.index("own") <= MOST_UNFINISHED
    assert sliced.slices.count("own") == 9


async def test_costly_work_of_one_caller_is_no_batch_with_anothers(thread: DeviceThread, sliced: Sliced) -> None:
    worker = DeviceWorker(thread, sliced, cost=lambda work: work[1], max_shared_cost=5)
    tasks = [ask(worker, "ada", "a0", 1)]
    await sliced.is_busy()
    tasks += [ask(worker, "ada", f"a{n}", 4) for n in (1, 2)]
    tasks += [ask(worker, who, who, 2) for who in ("bob", "carl")]
    await asyncio.sleep(0)
    sliced.gate.set()
    await asyncio.gather(*tasks)
    assert set(sliced.slices) == {"a0", "bob+carl", "a1+a2"}


async def test_a_flood_of_one_caller_closes_the_queue_to_nobody_else(thread: DeviceThread, sliced: Sliced) -> None:
    worker = DeviceWorker(thread, sliced, max_batch=1)
    running = ask(worker, "ada", "a0", 1)
    await sliced.is_busy()
    flood = [ask(worker, "ada", f"a{n}", 1) for n in range(1, 9)]
    await asyncio.sleep(0)
    with pytest.raises(OverloadedError, match=r"^8 requests"):
        await ask(worker, "ada", "one more", 1)
    short = ask(worker, "bob", "b1", 1)
    await asyncio.sleep(0)
    sliced.gate.set()
    assert await short == "b1"
    *served, refused = await asyncio.gather(running, *flood, return_exceptions=True)
    assert served == [f"a{n}" for n in range(8)]
    assert isinstance(refused, OverloadedError)


async def test_work_that_nobody_waits_for_ends_with_its_slice_and_tells_its_cost(
    thread: DeviceThread, sliced: Sliced
) -> None:
    spent: list[TokenUsage] = []
    worker = DeviceWorker(thread, sliced, observe_unanswered=spent.append)
    long = ask(worker, "ada", "long", 100)
    await sliced.is_busy()
    long.cancel()
    with pytest.raises(asyncio.CancelledError):
        await long
    assert spent == [TokenUsage(1, 0)]  # the slice that runs, too
    sliced.gate.set()
    assert await ask(worker, "ada", "next", 1) == "next"
    assert sliced.slices == ["long", "next"]
    assert sliced.broken_off == ["long"]


async def test_a_batch_goes_on_for_those_who_wait_and_is_told_who_does_not(
    thread: DeviceThread, sliced: Sliced
) -> None:
    worker, release = DeviceWorker(thread, sliced), threading.Event()
    thread.call(release.wait)
    gone, stays = (ask(worker, "ada", name, 3) for name in ("gone", "stays"))
    await asyncio.sleep(0)
    release.set()
    await sliced.is_busy()
    gone.cancel()
    await asyncio.gather(gone, return_exceptions=True)
    sliced.gate.set()
    assert await stays == "stays"
    assert sliced.slices == ["gone+stays"] * 3
    assert sliced.given_up == [frozenset(), frozenset({0}), frozenset({0})]


async def test_unfinished_work_fails_when_the_thread_closes(thread: DeviceThread, sliced: Sliced) -> None:
    worker = DeviceWorker(thread, sliced, max_batch=1)
    long = ask(worker, "ada", "long", 100)
    await sliced.is_busy()
    closing = asyncio.create_task(asyncio.to_thread(thread.close))
    while thread.healthy:
        await asyncio.sleep(0.001)
    sliced.gate.set()
    await closing
    with pytest.raises(Exception, match=r"thread .*restart"):
        await long
    assert sliced.slices == ["long"]


async def test_the_device_waits_for_no_tokenizer_and_short_texts_for_no_long_one(thread: DeviceThread) -> None:
    release, began = threading.Event(), threading.Event()
    names: list[str] = []

    def long() -> str:
        began.set()
        assert release.wait(10)
        return threading.current_thread().name

    def short() -> str:
        names.append(threading.current_thread().name)
        return "short"

    megabyte = asyncio.create_task(thread.tokenize(long, characters=LONG_CHARACTERS + 1))
    assert await asyncio.to_thread(began.wait, 10)
    assert await thread.tokenize(short, characters=LONG_CHARACTERS) == "short"
    assert await asyncio.wrap_future(thread.call(lambda: "device")) == "device"
    release.set()
    assert {await megabyte, *names} == {"qguide-tokenizer-long", "qguide-tokenizer"}


async def test_callers_take_turns_at_the_tokenizer(thread: DeviceThread) -> None:
    release, order = threading.Event(), list[str]()
    tasks = []
    for caller, name in (("ada", "a0"), ("ada", "a1"), ("ada", "a2"), ("bob", "b0")):

        def work(name: str = name) -> None:
            order.append(name)
            assert release.wait(10)

        with working_for(Tenant(caller)):
            tasks.append(asyncio.create_task(thread.tokenize(work, characters=1)))
        await asyncio.sleep(0)
        while not order:  # the first one runs before the others come
            await asyncio.sleep(0.001)
    release.set()
    await asyncio.gather(*tasks)
    assert order == ["a0", "b0", "a1", "a2"]

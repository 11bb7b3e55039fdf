"""A history is read ahead only while nothing waits for the device, and scores stay the same."""

import asyncio
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from qguide.qnet.device.device_thread import DeviceThread, DeviceWorker
from qguide.qnet.device.scoring_worker import ScoringWorker
from qguide.qnet.errors import HistoryTooLongError, ScorerUnavailableError
from qguide.qnet.models.checkpoint import LoadedQNet
from qguide.qnet.scoring.build import EnsembleScorer
from qguide.qnet.scoring.scripted import ScriptedScorer
from qguide.qnet.scoring.value_head import NaiveScorer, SharedPrefixScorer
from qguide.qnet.sliced_scorer import CachingScorer
from qguide.qnet.types import Message, ScoreRequest
from tests.support.device_work import Gated, is_red
from tests.support.tiny_models import q_model

HISTORY = (Message("user", "take " * 20), Message("assistant", "open " * 20), Message("user", "desk " * 20))
CANDIDATES = (Message("assistant", "go to desk"), Message("assistant", "open shelf"))
REQUEST = ScoreRequest(HISTORY, CANDIDATES)
PASS_TOKENS = 16


@pytest.fixture(scope="module")
def loaded() -> LoadedQNet:
    return q_model()


def fast(loaded: LoadedQNet) -> SharedPrefixScorer:
    return SharedPrefixScorer(loaded, cache_bytes=2**24, tokens_per_forward=PASS_TOKENS)


def read(scorer: Any, request: ScoreRequest, *, passes: int | None = None) -> list[int]:
    """Tokens of each pass of reading a request's history ahead, or of its first passes."""
    tokens: list[int] = []
    reading = scorer.read_ahead(scorer.prepare_history(request), begin=tokens.append)
    for _ in reading:
        if len(tokens) == passes:
            break
    return tokens


@pytest.mark.parametrize("passes", [1, 2, None])
@pytest.mark.parametrize("members", [1, 2])
def test_scores_are_those_of_a_scorer_that_read_nothing_ahead(
    loaded: LoadedQNet, passes: int | None, members: int
) -> None:
    scorer: CachingScorer = fast(loaded)
    if members > 1:
        scorer = EnsembleScorer("both", [fast(loaded) for _ in range(members)], [1.0] * members)
    tokens = read(scorer, REQUEST, passes=passes)
    [ahead] = scorer.score([REQUEST])
    [naive] = NaiveScorer(loaded).score([REQUEST])
    assert ahead.q_values == pytest.approx(naive.q_values, abs=1e-5)
    assert max(tokens) <= PASS_TOKENS
    assert ahead.cached_tokens == sum(tokens)
    [cold] = fast(loaded).score([REQUEST])
    assert ahead.computed_tokens + sum(tokens) == members * cold.computed_tokens


def test_a_whole_history_leaves_the_candidates_alone(loaded: LoadedQNet) -> None:
    scorer = fast(loaded)
    history = scorer.prepare_history(REQUEST)
    assert history
    assert sum(read(scorer, REQUEST)) == len(history[1])
    assert read(scorer, REQUEST) == []
    [result] = scorer.score([REQUEST])
    assert result.cached_tokens == len(history[1])


def test_the_step_after_a_scored_one_reads_only_its_observation(loaded: LoadedQNet) -> None:
    scorer = fast(loaded)
    scorer.score([REQUEST])
    later = ScoreRequest((*HISTORY, CANDIDATES[1], Message("user", "you see mug from desk")), CANDIDATES)
    tokens = read(scorer, later)
    [ahead] = scorer.score([later])
    [naive] = NaiveScorer(loaded).score([later])
    assert ahead.q_values == pytest.approx(naive.q_values, abs=1e-5)
    assert 0 < sum(tokens) < len(scorer.prepare(later).history) - len(scorer.prepare(REQUEST).history)


def test_a_history_under_another_salt_is_not_found(loaded: LoadedQNet) -> None:
    scorer = fast(loaded)
    read(scorer, ScoreRequest(HISTORY, (), cache_salt="one"))
    [result] = scorer.score([ScoreRequest(HISTORY, CANDIDATES, cache_salt="other")])
    assert result.cached_tokens == 0


def test_a_history_that_is_too_long_is_refused(loaded: LoadedQNet) -> None:
    long = ScoreRequest((Message("user", "find " * 5_000),), ())
    with pytest.raises(HistoryTooLongError):
        fast(loaded).prepare_history(long)


class Steps:
    """Idle work that waits in its first step until a test lets it go on."""

    def __init__(self, then: Callable[[], None] = lambda: None) -> None:
        self.ran = 0
        self.entered = threading.Event()
        self.gate = threading.Event()
        self._then = then

    def __iter__(self) -> Iterator[None]:
        for _ in range(3):
            self.ran += 1
            self.entered.set()
            assert self.gate.wait(10)
            self._then()
            yield


async def test_a_request_that_comes_meanwhile_is_served_before_the_next_step(thread: DeviceThread) -> None:
    steps, order = Steps(), list[int]()

    def run(numbers: Any) -> Any:
        order.append(steps.ran)
        return numbers

    ended = thread.when_idle(iter(steps))
    await asyncio.to_thread(steps.entered.wait, 10)
    waiting = asyncio.create_task(DeviceWorker(thread, run).submit(7))
    await asyncio.sleep(0)
    steps.gate.set()
    assert await waiting == 7
    assert order == [1]
    await asyncio.wrap_future(ended)
    assert steps.ran == 3


async def test_idle_work_waits_until_no_request_is_left(thread: DeviceThread, gated: Gated) -> None:
    steps = Steps()
    running = asyncio.create_task(DeviceWorker(thread, gated).submit(1))
    await gated.is_busy()
    ended = thread.when_idle(iter(steps))
    steps.gate.set()
    assert steps.ran == 0
    gated.gate.set()
    assert await running == 2
    await asyncio.wrap_future(ended)
    assert steps.ran == 3


async def test_cancelled_idle_work_stops_before_its_next_step(thread: DeviceThread) -> None:
    steps = Steps()
    ended = thread.when_idle(iter(steps))
    await asyncio.to_thread(steps.entered.wait, 10)
    assert ended.cancel()
    steps.gate.set()
    assert await asyncio.wrap_future(thread.call(lambda: steps.ran)) == 1
    after = Steps()
    after.gate.set()
    await asyncio.wrap_future(thread.when_idle(iter(after)))
    assert (steps.ran, after.ran) == (1, 3)


async def test_idle_work_that_fails_fails_alone(thread: DeviceThread) -> None:
    def fail() -> None:
        raise LookupError("no such token")

    steps = Steps(fail)
    steps.gate.set()
    with pytest.raises(LookupError):
        await asyncio.wrap_future(thread.when_idle(iter(steps)))
    assert await asyncio.wrap_future(thread.call(lambda: 5)) == 5


async def test_idle_work_is_refused_when_there_is_too_much_of_it_and_failed_at_the_end() -> None:
    thread = DeviceThread(max_waiting=1)
    steps = Steps()
    first = thread.when_idle(iter(steps))
    await asyncio.to_thread(steps.entered.wait, 10)
    assert thread.when_idle(iter(Steps())).cancelled()
    closing = asyncio.create_task(asyncio.to_thread(thread.close))
    await is_red(thread)
    steps.gate.set()
    await closing
    with pytest.raises(ScorerUnavailableError, match="dead"):
        await asyncio.wrap_future(first)
    with pytest.raises(ScorerUnavailableError, match="dead"):
        thread.when_idle(iter(steps))


async def test_a_worker_reads_ahead_and_says_what_it_cost(thread: DeviceThread, loaded: LoadedQNet) -> None:
    scorer = fast(loaded)
    worker = ScoringWorker(scorer, thread)
    reading = worker.read_ahead(ScoreRequest(HISTORY, ()))
    assert reading
    await asyncio.to_thread(reading.wait, 10)
    result = await worker.score(REQUEST)
    assert reading.stop() == result.cached_tokens == len(scorer.prepare(REQUEST).history)


async def test_a_reading_that_is_stopped_at_once_costs_at_most_a_pass(thread: DeviceThread, loaded: LoadedQNet) -> None:
    worker = ScoringWorker(fast(loaded), thread)
    reading = worker.read_ahead(ScoreRequest(HISTORY, ()))
    assert reading
    reading.stop()
    await asyncio.wrap_future(thread.call(lambda: None))
    assert reading.stop() <= PASS_TOKENS


async def test_a_scorer_without_a_cache_reads_nothing_ahead(thread: DeviceThread) -> None:
    worker = ScoringWorker(ScriptedScorer({}), thread)
    assert worker.read_ahead(ScoreRequest(HISTORY, ())) is None

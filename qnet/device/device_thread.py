"""The one thread that owns the device, and the asynchronous way to it.

Requests of all kinds wait in one bounded queue. The thread takes the oldest and, with it, the
others that wait for the same work, as one micro-batch of about so many new tokens. There is no
polling and no waiting for a batch to fill: while one runs, the next one gathers.

A batch that fails is run again by halves, so that a fault ends with the request that has it.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from threading import Condition, Thread, current_thread
from time import perf_counter
from traceback import clear_frames
from typing import Any, Generic, Literal, ParamSpec, TypeVar

from qnet.device.token_estimate import UncachedTokenEstimator
from qnet.errors import OverloadedError, ScorerUnavailableError, UnscorableError
from qnet.tenant import current_tenant
from qnet.types import Scorer, ScoreRequest, ScoreResult

Request = TypeVar("Request")
Result = TypeVar("Result")
Told = ParamSpec("Told")

Ending = Literal["answered", "failed", "given_up"]
"""How a request ended; `given_up`: its time was up, or nobody wanted the answer any more."""

DEFAULT_MAX_WAITING = 256
DEFAULT_MAX_BATCH = 16
DEFAULT_MAX_BATCH_TOKENS = 2048
"""As many as one forward pass takes: with more, a batch would only be several."""

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Waiting:
    """A request in the queue, and where its result goes.

    Attributes:
        cost: in the worker's unit.
        taken_at: when its batch began; None while it is in the queue.
    """

    worker: "DeviceWorker[Any, Any]"
    request: Any
    cost: int = 0
    future: "Future[Any]" = field(default_factory=Future)
    queued_at: float = field(default_factory=perf_counter)
    taken_at: float | None = None

    @property
    def waited_s(self) -> float:
        """In the queue, so far."""
        return (self.taken_at or perf_counter()) - self.queued_at


@dataclass(frozen=True, slots=True)
class BatchRun:
    """One micro-batch that gave its results.

    Attributes:
        requests: how many.
        run_s: on the device.
    """

    requests: int
    run_s: float


class DeviceThread:
    """One thread that runs everything that needs the device, so that nothing fights for it.

    Args:
        max_waiting: requests that may wait; one more is refused.
        is_lost: whether what a batch failed with is the end of the device, and so of the thread.
    """

    def __init__(
        self,
        *,
        max_waiting: int = DEFAULT_MAX_WAITING,
        is_lost: Callable[[Exception], bool] = lambda _: False,
    ) -> None:
        self.is_lost = is_lost
        self._max_waiting = max_waiting
        self._waiting: deque[_Waiting] = deque()
        self._changed = Condition()
        self._closed = False
        self._thread = Thread(target=self._run, name="qguide-device", daemon=True)
        self._thread.start()

    @property
    def healthy(self) -> bool:
        """Whether requests are being served."""
        return self._thread.is_alive() and not self._closed

    def close(self, *, timeout_s: float | None = None) -> None:
        """Fail what waits and stop after the running batch; safe to call twice.

        A batch may close its own thread, and does not wait for itself.

        Args:
            timeout_s: how long to wait for the running batch; None until it ends.
        """
        with self._changed:
            self._closed = True
            self._changed.notify()
        if current_thread() is not self._thread:
            self._thread.join(timeout_s)

    def call(self, function: Callable[[], Result]) -> "Future[Result]":
        """Run one function in its turn; it is not counted against `max_waiting`.

        Raises:
            ScorerUnavailableError: the thread is dead.
        """
        worker = DeviceWorker[Callable[[], Result], Result](
            self, lambda functions: [one() for one in functions]
        )
        waiting = _Waiting(worker, function)
        with self._changed:
            self._append(waiting)
        return waiting.future

    def put(self, waiting: _Waiting) -> None:
        """Queue a request.

        Raises:
            OverloadedError: the queue is full.
            ScorerUnavailableError: the thread is dead.
        """
        with self._changed:
            self._waiting = deque(w for w in self._waiting if not w.future.cancelled())
            if len(self._waiting) >= self._max_waiting and not self._closed:
                raise OverloadedError(
                    f"{len(self._waiting):,} requests wait for the device, the most there may be; "
                    "try again later"
                )
            self._append(waiting)

    def _append(self, waiting: _Waiting) -> None:
        if self._closed:
            raise ScorerUnavailableError("the device thread is dead; restart the server")
        self._waiting.append(waiting)
        self._changed.notify()

    def _run(self) -> None:
        try:
            while self._run_next():
                pass
        finally:
            with self._changed:
                self._closed = True
                waiting, self._waiting = self._waiting, deque()
            # Claimed first: a caller that cancels in between would leave the rest without answer.
            uncancelled = [w for w in waiting if w.future.set_running_or_notify_cancel()]
            dead = ScorerUnavailableError("the device thread is dead; restart the server")
            _fail(uncancelled, dead)

    def _run_next(self) -> bool:
        """Serve one batch; a thread that waits for the next holds on to no model of the last."""
        batch = self._next_batch()
        if batch:
            batch[0].worker.run(batch)
        return bool(batch)

    def _next_batch(self) -> list[_Waiting]:
        """The oldest request and those that wait for the same work; empty once closed."""
        with self._changed:
            self._changed.wait_for(lambda: self._closed or self._waiting)
            if self._closed:
                return []
            worker = self._waiting[0].worker
            batch = worker.first_of([w for w in self._waiting if w.worker is worker])
            taken = set(map(id, batch))
            self._waiting = deque(w for w in self._waiting if id(w) not in taken)
            return batch


class DeviceWorker(Generic[Request, Result]):
    """One kind of work on the device thread: a synchronous batch function, awaited one by one.

    Args:
        run_batch: results of a batch of requests, in order.
        max_batch: most requests of one micro-batch.
        cost: of a request, in any unit; asked once, when the request comes.
        max_cost: of one micro-batch together; a request that costs more is one alone.
        observe: told of every batch that ran, on the device thread, before its callers are.
        observe_wait: told of every request that was not refused how long it waited in the queue,
            and how it ended; on the caller's thread.
    """

    def __init__(
        self,
        thread: DeviceThread,
        run_batch: Callable[[Sequence[Request]], Sequence[Result]],
        *,
        max_batch: int = DEFAULT_MAX_BATCH,
        cost: Callable[[Request], int] = lambda _: 0,
        max_cost: int = 0,
        observe: Callable[[BatchRun], None] = lambda _: None,
        observe_wait: Callable[[float, Ending], None] = lambda *_: None,
    ) -> None:
        self.thread = thread
        self._max_batch = max_batch
        self._cost = cost
        self._max_cost = max_cost
        self._run_batch = run_batch
        self._observe = _harmless(observe)
        self._observe_wait = _harmless(observe_wait)

    async def submit(self, request: Request, *, timeout_s: float | None = None) -> Result:
        """The request's result, from whichever micro-batch it falls into.

        Raises:
            ScorerUnavailableError: the thread is dead, its queue full or `timeout_s` past.
        """
        waiting = _Waiting(self, request, self._cost(request))
        self.thread.put(waiting)
        ended: Ending = "failed"
        try:
            result: Result = await asyncio.wait_for(asyncio.wrap_future(waiting.future), timeout_s)
            ended = "answered"
        except TimeoutError as error:
            ended = "given_up"
            raise ScorerUnavailableError(
                f"the device gave no answer within {timeout_s} s; allow more or try again later"
            ) from error
        except asyncio.CancelledError:
            ended = "given_up"
            raise
        finally:
            self._observe_wait(waiting.waited_s, ended)
        return result

    def first_of(self, waiting: Sequence[_Waiting]) -> list[_Waiting]:
        """The next micro-batch: as many as it may have, in order, and at least one."""
        batch = list(waiting[:1])
        room = self._max_cost - batch[0].cost
        for one in waiting[1 : self._max_batch]:
            room -= one.cost
            if room < 0:
                break
            batch.append(one)
        return batch

    def run(self, batch: Sequence[_Waiting]) -> None:
        """Serve a batch on the device thread; cancelled requests cost nothing."""
        live = [w for w in batch if w.future.set_running_or_notify_cancel()]
        for waiting in live:
            waiting.taken_at = perf_counter()
        try:
            self._serve(live)
        except BaseException as error:
            reason = type(error).__name__
            dead = ScorerUnavailableError(
                f"the device thread died of this batch ({reason}); restart the server"
            )
            _fail([w for w in live if not w.future.done()], dead)
            raise

    def _serve(self, live: Sequence[_Waiting]) -> None:
        if not live:
            return
        started = perf_counter()
        try:
            results = self._run_batch([w.request for w in live])
        except Exception as error:  # a batch's failure is its callers' answer, not the thread's end
            if self.thread.is_lost(error):
                raise
            if len(live) == 1 or _is_nobodys_own(error):
                clear_frames(error.__traceback__)  # the caller may keep it, and with it the tensors
                _fail(live, error)
                return
        else:
            self._observe(BatchRun(len(live), perf_counter() - started))
            for waiting, result in zip(live, results, strict=True):
                waiting.future.set_result(result)
            return
        # Only here is the error gone, and with it what its traceback kept in the device's memory.
        half = len(live) // 2
        self._serve(live[:half])
        self._serve(live[half:])


class ScoringWorker:
    """A synchronous scorer, awaited one request at a time and run in micro-batches.

    Args:
        max_batch_tokens: new tokens of one micro-batch, as far as they can be told from its texts.
        timeout_s: how long a request may take, its waiting included; None for ever.
        observe: see `DeviceWorker`.
        observe_wait: likewise.
    """

    def __init__(
        self,
        scorer: Scorer,
        thread: DeviceThread,
        *,
        max_batch: int = DEFAULT_MAX_BATCH,
        max_batch_tokens: int = DEFAULT_MAX_BATCH_TOKENS,
        timeout_s: float | None = None,
        observe: Callable[[BatchRun], None] = lambda _: None,
        observe_wait: Callable[[float, Ending], None] = lambda *_: None,
    ) -> None:
        self.name = scorer.name
        self._scorer = scorer
        self._novelty = UncachedTokenEstimator()
        self._timeout_s = timeout_s
        self._worker = DeviceWorker(
            thread,
            self._score,
            max_batch=max_batch,
            cost=self._novelty.new_tokens,
            max_cost=max_batch_tokens,
            observe=observe,
            observe_wait=observe_wait,
        )

    @property
    def healthy(self) -> bool:
        """Whether requests are being served."""
        return self._worker.thread.healthy

    async def score(self, request: ScoreRequest) -> ScoreResult:
        """Q of each candidate of one request.

        Raises:
            HistoryTooLongError: history and candidate exceed the trunk's context.
            ScorerUnavailableError: the thread is dead, its queue full or the time up.
        """
        salted = replace(request, cache_salt=current_tenant().cache_salt)
        return await self._worker.submit(salted, timeout_s=self._timeout_s)

    def _score(self, requests: Sequence[ScoreRequest]) -> list[ScoreResult]:
        results = self._scorer.score(requests)
        self._novelty.remember(requests)
        return results


def _is_nobodys_own(error: Exception) -> bool:
    """Whether asking for each request alone would only keep the others waiting."""
    return isinstance(error, ScorerUnavailableError) and not isinstance(error, UnscorableError)


def _harmless(observe: Callable[Told, None]) -> Callable[Told, None]:
    """The same, but where it fails that is logged, once, and costs nobody an answer."""
    failed = False

    def told(*args: Told.args, **kwargs: Told.kwargs) -> None:
        nonlocal failed
        try:
            observe(*args, **kwargs)
        except Exception as error:
            if not failed:
                _log.error("what observes the device failed", exc_info=error)
            failed = True

    return told


def _fail(running: Sequence[_Waiting], error: Exception) -> None:
    for one in running:
        one.future.set_exception(error)

"""The one thread that owns the device, and the asynchronous way to it.

Requests of all kinds wait in one bounded queue. The thread takes the oldest and, with it, the
others that wait for the same work, as one micro-batch. There is no polling and no waiting for a
batch to fill: while one runs, the next one gathers.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from threading import Condition, Thread, current_thread
from time import perf_counter
from typing import Any, Generic, TypeVar

from qnet.errors import OverloadedError, ScorerUnavailableError
from qnet.types import Scorer, ScoreRequest, ScoreResult

Request = TypeVar("Request")
Result = TypeVar("Result")

DEFAULT_MAX_WAITING = 256
DEFAULT_MAX_BATCH = 16


@dataclass(frozen=True, slots=True)
class _Waiting:
    """A request in the queue, and where its result goes."""

    worker: "DeviceWorker[Any, Any]"
    request: Any
    future: "Future[Any]" = field(default_factory=Future)
    queued_at: float = field(default_factory=perf_counter)


@dataclass(frozen=True, slots=True)
class BatchTimes:
    """How long one micro-batch took.

    Attributes:
        waited_s: in the queue, of each of its requests.
        run_s: on the device.
    """

    waited_s: tuple[float, ...]
    run_s: float


class DeviceThread:
    """One thread that runs everything that needs the device, so that nothing fights for it.

    Args:
        max_waiting: requests that may wait; one more is refused.
    """

    def __init__(self, *, max_waiting: int = DEFAULT_MAX_WAITING) -> None:
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
            batch = [w for w in self._waiting if w.worker is worker][: worker.max_batch]
            taken = set(map(id, batch))
            self._waiting = deque(w for w in self._waiting if id(w) not in taken)
            return batch


class DeviceWorker(Generic[Request, Result]):
    """One kind of work on the device thread: a synchronous batch function, awaited one by one.

    Args:
        run_batch: results of a batch of requests, in order.
        max_batch: most requests of one micro-batch.
        observe: told of every batch that ran, on the device thread, before its callers are.
    """

    def __init__(
        self,
        thread: DeviceThread,
        run_batch: Callable[[Sequence[Request]], Sequence[Result]],
        *,
        max_batch: int = DEFAULT_MAX_BATCH,
        observe: Callable[[BatchTimes], None] | None = None,
    ) -> None:
        self.thread = thread
        self.max_batch = max_batch
        self._run_batch = run_batch
        self._observe = observe

    async def submit(self, request: Request, *, timeout_s: float | None = None) -> Result:
        """The request's result, from whichever micro-batch it falls into.

        Raises:
            ScorerUnavailableError: the thread is dead, its queue full or `timeout_s` past.
        """
        waiting = _Waiting(self, request)
        self.thread.put(waiting)
        try:
            result: Result = await asyncio.wait_for(asyncio.wrap_future(waiting.future), timeout_s)
        except TimeoutError as error:
            raise ScorerUnavailableError(
                f"the device gave no answer within {timeout_s} s; allow more or try again later"
            ) from error
        return result

    def run(self, batch: Sequence[_Waiting]) -> None:
        """Serve a batch on the device thread; cancelled requests cost nothing."""
        live = [w for w in batch if w.future.set_running_or_notify_cancel()]
        try:
            self._serve(live)
        except BaseException:
            dead = ScorerUnavailableError("the device thread died of this batch")
            _fail([w for w in live if not w.future.done()], dead)
            raise

    def _serve(self, live: Sequence[_Waiting]) -> None:
        if not live:
            return
        started = perf_counter()
        try:
            results = self._run_batch([w.request for w in live])
        except ScorerUnavailableError as error:
            # No request's own fault; asking for each alone would only keep the others waiting.
            _fail(live, error)
            return
        except Exception as error:  # a batch's failure is its callers' answer, not the thread's end
            if len(live) == 1:
                live[0].future.set_exception(error)
                return
            for waiting in live:
                self._serve([waiting])
            return
        if self._observe is not None:
            waited_s = tuple(started - w.queued_at for w in live)
            self._observe(BatchTimes(waited_s, perf_counter() - started))
        for waiting, result in zip(live, results, strict=True):
            waiting.future.set_result(result)


class ScoringWorker:
    """A synchronous scorer, awaited one request at a time and run in micro-batches.

    Args:
        timeout_s: how long a request may take, its waiting included; None for ever.
        observe: told of every batch that ran, on the device thread.
    """

    def __init__(
        self,
        scorer: Scorer,
        thread: DeviceThread,
        *,
        max_batch: int = DEFAULT_MAX_BATCH,
        timeout_s: float | None = None,
        observe: Callable[[BatchTimes], None] | None = None,
    ) -> None:
        self.name = scorer.name
        self._timeout_s = timeout_s
        self._worker = DeviceWorker(thread, scorer.score, max_batch=max_batch, observe=observe)

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
        return await self._worker.submit(request, timeout_s=self._timeout_s)


def _fail(running: Sequence[_Waiting], error: Exception) -> None:
    for one in running:
        one.future.set_exception(error)

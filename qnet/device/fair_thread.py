"""One thread that works for many callers in turns.

Long work is a generator that yields before each slice. After every slice the thread serves the
caller that has had the least of its time: it continues a job of that caller or begins a new one.
There is no polling, and no waiting for a batch to fill: the next batch gathers while one runs.
"""

from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from dataclasses import dataclass, field
from threading import Condition, Thread, current_thread
from time import perf_counter
from traceback import clear_frames
from typing import Any, Protocol, TypeVar

from qguide.qnet.errors import OverloadedError, ScorerUnavailableError
from qguide.qnet.turns import FairQueue
from qguide.qnet.work import NOTHING, TokenUsage

Result = TypeVar("Result")

DEFAULT_MAX_WAITING = 256


@dataclass(slots=True)
class QueuedRequest:
    """A request, queued or being served, and the future of its result.

    Attributes:
        cost: in the worker's unit.
        taken_at: when its batch began; None while it is in the queue.
        given_up: its caller has left, or its time is up.
        spent: what its slices have cost until now, the running one included.
        origin: the request that it is a part of; None if it is one of its own.
    """

    worker: "Worker"
    request: Any
    caller: str = ""
    cost: int = 0
    future: "Future[Any]" = field(default_factory=Future)
    queued_at: float | None = None
    taken_at: float | None = None
    given_up: bool = False
    spent: TokenUsage = NOTHING
    origin: object = None

    @property
    def waited_s(self) -> float:
        """Time in the queue, so far."""
        now = perf_counter()
        return (self.taken_at or now) - (self.queued_at or now)


class Worker(Protocol):
    """One kind of work."""

    def may_start(self, waiting: QueuedRequest, *, running: int, own: int) -> bool:
        """True if it may begin beside `running` unfinished batches of this kind, of which `own` have its caller's."""
        ...

    def first_of(self, waiting: Sequence[QueuedRequest]) -> list[QueuedRequest]:
        """The next batch, in order: up to its limits, and at least one request."""
        ...

    def slices(self, batch: Sequence[QueuedRequest]) -> Generator[None, None, None]:
        """Serve a batch, slice by slice, and set every request's result."""
        ...


class _Call:
    """One function, in one slice."""

    def __init__(self, is_lost: Callable[[Exception], bool]) -> None:
        self._is_lost = is_lost

    def may_start(self, waiting: QueuedRequest, *, running: int, own: int) -> bool:
        """A single function may always start."""
        return True

    def first_of(self, waiting: Sequence[QueuedRequest]) -> list[QueuedRequest]:
        """The function, alone."""
        return list(waiting[:1])

    def slices(self, batch: Sequence[QueuedRequest]) -> Generator[None, None, None]:
        """Run the function in one slice."""
        # Makes this a generator; all of the function runs in the first `next`.
        yield from ()
        [waiting] = batch
        if not waiting.future.set_running_or_notify_cancel():
            return
        try:
            result = waiting.request()
        except BaseException as error:  # the answer of whoever called, who may keep it
            clear_frames(error.__traceback__)
            waiting.future.set_exception(error)
            if not isinstance(error, Exception) or self._is_lost(error):
                raise
        else:
            waiting.future.set_result(result)


class _Job:
    """A batch that has begun."""

    def __init__(self, worker: Worker, batch: Sequence[QueuedRequest]) -> None:
        self.worker = worker
        self.callers = frozenset(waiting.caller for waiting in batch)
        self._steps = worker.slices(batch)
        self._weights = dict.fromkeys(self.callers, 0)
        for waiting in batch:
            # One more than its cost: what is cached costs nothing, but its pass takes time all the same.
            self._weights[waiting.caller] += 1 + waiting.cost

    def step(self) -> bool:
        """Run one slice; False if it was the last."""
        try:
            next(self._steps)
        except StopIteration:
            return False
        return True

    def close(self) -> None:
        """Stop the batch where it is."""
        self._steps.close()

    def shares(self, seconds: float) -> dict[str, float]:
        """Each caller's part of this time."""
        whole = sum(self._weights.values())
        return {caller: seconds * weight / whole for caller, weight in self._weights.items()}


@dataclass(frozen=True, slots=True)
class _IdleWork:
    """Work for when nothing else is due, one step at a time, and the future of its end."""

    steps: Iterator[None]
    ended: "Future[None]"

    def step(self) -> bool:
        """Run one step; False if it was the last, or nobody wants it any more."""
        if self.ended.cancelled():
            return False
        try:
            next(self.steps)
        except StopIteration:
            with suppress(InvalidStateError):  # it was cancelled meanwhile
                self.ended.set_result(None)
            return False
        return True

    def fail(self, error: BaseException) -> None:
        """End with an error."""
        with suppress(InvalidStateError):
            self.ended.set_exception(error)


class FairThread:
    """A thread with its queue and the jobs that it has begun.

    Args:
        max_waiting: requests that may wait; when the queue is full, the newest request of the caller with most waiting
            is refused, so that its flood does not close the queue to others.
        is_lost: True if the exception means that the device is lost, so the thread must stop.
    """

    def __init__(
        self,
        name: str,
        *,
        max_waiting: int = DEFAULT_MAX_WAITING,
        is_lost: Callable[[Exception], bool] = lambda _: False,
        clock: Callable[[], float] = perf_counter,
    ) -> None:
        self.is_lost = is_lost
        self._max_waiting = max_waiting
        self._clock = clock
        self._queue = FairQueue[QueuedRequest]()
        self._jobs: list[_Job] = []
        self._idle: deque[_IdleWork] = deque()
        self._changed = Condition()
        self._closed = False
        self._thread = Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    @property
    def healthy(self) -> bool:
        """True while requests are being served."""
        return self._thread.is_alive() and not self._closed

    @property
    def waiting(self) -> frozenset[int]:
        """Identities of the requests with work in the queue; parts of one are one request."""
        with self._changed:
            return frozenset(id(queued.origin or queued) for _, queued in self._queue)

    @property
    def busy(self) -> bool:
        """True while a request waits, a batch is unfinished, or there is idle work."""
        with self._changed:
            return bool(self._jobs or len(self._queue) or self._idle)

    def close(self, *, timeout_s: float | None = None) -> None:
        """Fail what waits or is unfinished, and stop after the running slice; safe to call twice.

        A batch may close its own thread, and does not wait for itself.
        """
        with self._changed:
            self._closed = True
            self._changed.notify()
        if current_thread() is not self._thread:
            self._thread.join(timeout_s)

    def call(self, function: Callable[[], Result], *, caller: str = "") -> "Future[Result]":
        """Run one function in its turn; it is not counted against `max_waiting`."""
        waiting = QueuedRequest(_Call(self.is_lost), function, caller)
        with self._changed:
            self._append(waiting)
        return waiting.future

    def when_idle(self, steps: Iterator[None]) -> "Future[None]":
        """Run steps in order, each only when no request waits and no batch is unfinished.

        Cancel the future to stop before the next step. Of several such works the oldest is
        finished first; a thread that has too many of them refuses the work by a cancelled future.
        """
        work = _IdleWork(steps, Future())
        with self._changed:
            if self._closed:
                raise ScorerUnavailableError("the device thread is dead; restart the server")
            if len(self._idle) >= self._max_waiting:
                work.ended.cancel()
            else:
                self._idle.append(work)
                self._changed.notify()
        return work.ended

    def put(self, waiting: QueuedRequest) -> None:
        """Queue a request."""
        refused: QueuedRequest | None = None
        refusal: OverloadedError | None = None
        with self._changed:
            full = len(self._queue) >= self._max_waiting and not self._closed
            if full:  # the cancelled ones, which cost nothing in their turn, make room
                self._queue.keep({id(w) for _, w in self._queue if not w.future.cancelled()})
                full = len(self._queue) >= self._max_waiting
            if full:
                refusal = OverloadedError(
                    f"{len(self._queue):,} requests wait for the device, the most there may be; try again later"
                )
                crowded = self._queue.longer_than(waiting.caller)
                if crowded is None:
                    raise refusal
                refused = self._queue.pop_newest(crowded)
            self._append(waiting)
        # Outside of the lock, because a future's callbacks run in this thread.
        if refused is not None and refused.future.set_running_or_notify_cancel():
            refused.future.set_exception(refusal)

    def _append(self, waiting: QueuedRequest) -> None:
        if self._closed:
            raise ScorerUnavailableError("the device thread is dead; restart the server")
        waiting.queued_at = perf_counter()
        self._queue.add(waiting.caller, waiting)
        self._changed.notify()

    def _run(self) -> None:
        try:
            while self._run_next():
                pass
        finally:
            with self._changed:
                self._closed = True
                # Closed under the lock, before the queue is read for the last time: what comes
                # later is refused, so nothing is left in a queue that nobody serves.
                waiting = [w for _, w in self._queue]
                self._queue.keep(())
                jobs, self._jobs = self._jobs, []
                idle, self._idle = self._idle, deque()
            for job in jobs:
                job.close()
            for work in idle:
                work.fail(ScorerUnavailableError("the device thread is dead; restart the server"))
            # Claim all futures first: a cancellation during the loop would raise and leave the rest unanswered.
            uncancelled = [w for w in waiting if w.future.set_running_or_notify_cancel()]
            for one in uncancelled:
                one.future.set_exception(ScorerUnavailableError("the device thread is dead; restart the server"))

    def _run_next(self) -> bool:
        """Run one slice; False once closed.

        A separate method, so that its locals do not keep a model alive.
        """
        job = self._next_job()
        if job is None:
            return self._run_idle()
        started_s = self._clock()
        goes_on = job.step()
        with self._changed:
            # Charged for what it took, not for what it was thought to take.
            self._queue.charge(job.shares(self._clock() - started_s))
            if not goes_on:
                self._jobs.remove(job)
        return True

    def _run_idle(self) -> bool:
        """Run one step of the oldest idle work; False once closed."""
        if self._closed:
            return False
        work = self._idle[0]
        try:
            goes_on = work.step()
        except BaseException as error:
            clear_frames(error.__traceback__)
            work.fail(error)
            goes_on = False
            if not isinstance(error, Exception) or self.is_lost(error):
                raise
        if not goes_on:
            # Still the first: only this thread takes work from the left.
            self._idle.popleft()
        return True

    def _next_job(self) -> _Job | None:
        """A job of the least served caller, begun or new; None if none is left, or once closed."""
        with self._changed:
            self._changed.wait_for(lambda: self._closed or self._jobs or len(self._queue) or self._idle)
            if self._closed or not (self._jobs or len(self._queue)):
                return None
            begun = min(self._jobs, key=self._used_s, default=None)
            # Where clocks are equal the begun job goes on: it holds memory on the device until its end.
            job = self._new_job(before_s=None if begun is None else self._used_s(begun)) or begun
            assert job is not None, "a worker without an unfinished batch may start one"
            self._queue.serve(self._used_s(job))
            return job

    def _new_job(self, *, before_s: float | None) -> _Job | None:
        """The batch of the first request that may start, unless a begun job goes before it."""
        for caller, waiting in self._queue:
            # Callers come in the order of their clocks: none after this one is further behind.
            if before_s is not None and self._queue.used_s(caller) >= before_s:
                return None
            if self._may_start(waiting):
                return self._begin(waiting.worker)
        return None

    def _may_start(self, waiting: QueuedRequest) -> bool:
        running = [job.callers for job in self._jobs if job.worker is waiting.worker]
        own = sum(waiting.caller in callers for callers in running)
        return waiting.worker.may_start(waiting, running=len(running), own=own)

    def _begin(self, worker: Worker) -> _Job:
        """A batch of those that wait for the same work, whoever's they are."""
        # In the order of the clocks: where not all fit, the least served are in the batch.
        batch = worker.first_of([one for _, one in self._queue if one.worker is worker and self._may_start(one)])
        taken = set(map(id, batch))
        self._queue.keep({id(one) for _, one in self._queue} - taken)
        job = _Job(worker, batch)
        self._jobs.append(job)
        return job

    def _used_s(self, job: _Job) -> float:
        """Clock of the job's least-served caller, in seconds of device time."""
        # By the least served of them, which must not wait because others share its batch.
        return min(map(self._queue.used_s, job.callers))

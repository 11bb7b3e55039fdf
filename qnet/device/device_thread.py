"""The thread that owns the device, two more that tokenize for it, and micro-batches on the first.

A tokenizer takes a second for a megabyte, and the device must not wait for that. Short and long
texts have a thread each, so that no short one waits for a long one.

Requests are awaited one by one. A batch that fails is run again by halves, so that an error reaches only the request
that causes it. A batch without waiting callers is stopped after the running slice, and its cost is reported.
"""

import asyncio
import logging
import sys
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import Future
from functools import partial
from math import inf
from time import perf_counter
from traceback import clear_frames
from typing import Any, Generic, Literal, ParamSpec, TypeVar

from qguide.qnet.device.fair_thread import DEFAULT_MAX_WAITING, FairThread, QueuedRequest
from qguide.qnet.errors import DeadlineExceededError, ScorerUnavailableError, UnscorableError
from qguide.qnet.sliced_scorer import Slices
from qguide.qnet.work import TokenUsage, current_tenant, total_of

Result = TypeVar("Result")

LONG_CHARACTERS = 32_768
"""A text of more, which takes a tokenizer some 50 ms, is a long one."""
Request = TypeVar("Request")
Params = ParamSpec("Params")
Ending = Literal["answered", "failed", "given_up"]
"""A request's end; `given_up`: its time was up, or its caller had left."""
DEFAULT_MAX_BATCH = 16
MOST_UNFINISHED = 4
"""Batches of one kind in turns with each other: each holds keys and values on the device, and each
that runs alone is one that the others cannot be batched with. Callers that have none unfinished may
begin as many again, so that a flood of others does not keep them waiting for the end of a batch."""
_log = logging.getLogger(__name__)


class DeviceThread(FairThread):
    """One thread that runs everything that needs the device, so that nothing fights for it."""

    def __init__(
        self,
        *,
        max_waiting: int = DEFAULT_MAX_WAITING,
        is_lost: Callable[[Exception], bool] = lambda _: False,
        clock: Callable[[], float] = perf_counter,
    ) -> None:
        self._tokenizers: dict[bool, FairThread] = {}
        super().__init__("qguide-device", max_waiting=max_waiting, is_lost=is_lost, clock=clock)

    async def tokenize(self, work: Callable[[], Result], *, characters: int) -> Result:
        """Tokenize a text of so many characters on another thread, in its caller's turn."""
        return await asyncio.wrap_future(self.tokenizing(work, characters=characters))

    def tokenizing(self, work: Callable[[], Result], *, characters: int) -> "Future[Result]":
        """The same as `tokenize`, as a future."""
        long = characters > LONG_CHARACTERS
        if long not in self._tokenizers:
            name = "qguide-tokenizer-long" if long else "qguide-tokenizer"
            self._tokenizers[long] = FairThread(name)
        return self._tokenizers[long].call(work, caller=current_tenant().name)

    def close(self, *, timeout_s: float | None = None) -> None:
        """Stop all three; see `FairThread.close`."""
        super().close(timeout_s=timeout_s)
        for thread in self._tokenizers.values():
            thread.close(timeout_s=timeout_s)


class DeviceWorker(Generic[Request, Result]):
    """One kind of work on the device thread: a batch function, awaited one request at a time.

    Args:
        run_batch: results of a batch of requests, in order, at once or in slices.
        max_batch: most requests of one micro-batch.
        cost: of a request, in any unit; asked once, when the request comes.
        max_cost: of one micro-batch together; a request that costs more is one alone. A request
            within it is expected to take a single slice. 0 is no limit.
        max_shared_cost: of one micro-batch of several callers, whose slices take as long as those
            of the longest request; None is `max_cost`.
        observe: told of every batch that gave its results how many requests it had, and its seconds on
            the device without the turns of others; on the device thread, before its callers are told.
        observe_wait: told of every request that was not refused how long it waited in the queue,
            and how it ended; on the caller's thread.
        observe_unanswered: told of every request without an answer what it had cost by then; in the caller's task.
    """

    def __init__(
        self,
        thread: DeviceThread,
        run_batch: Callable[[Sequence[Request]], Sequence[Result] | Slices[Sequence[Result]]],
        *,
        max_batch: int = DEFAULT_MAX_BATCH,
        cost: Callable[[Request], int] = lambda _: 0,
        max_cost: int = 0,
        max_shared_cost: int | None = None,
        observe: Callable[[int, float], None] = lambda *_: None,
        observe_wait: Callable[[float, Ending], None] = lambda *_: None,
        observe_unanswered: Callable[[TokenUsage], None] = lambda _: None,
    ) -> None:
        self.thread = thread
        self._max_batch = max_batch
        self._cost = cost
        self._max_cost = max_cost
        self._max_shared_cost = max_shared_cost
        self._run_batch = run_batch
        self._observe = _never_raising(observe)
        self._observe_wait = _never_raising(observe_wait)
        self._observe_unanswered = _never_raising(observe_unanswered)

    async def submit(
        self, request: Request, *, after: "Future[Any] | None" = None, timeout_s: float | None = None
    ) -> Result:
        """The request's result, from whichever micro-batch it falls into.

        Args:
            after: preparation of the request on another thread, which queues it when it is done: a way through the
                event loop would cost as much as the queueing itself. Its error is the request's.
        """
        tenant = current_tenant()
        cost = self._cost(request)
        waiting = QueuedRequest(self, request, tenant.name, cost, origin=tenant.request)
        if after is None:
            self.thread.put(waiting)
        else:
            after.add_done_callback(partial(self._put_after, waiting))
        ended: Ending = "failed"
        try:
            result: Result = await asyncio.wait_for(asyncio.wrap_future(waiting.future), timeout_s)
            ended = "answered"
        except TimeoutError as error:
            ended = "given_up"
            raise DeadlineExceededError(
                f"the device gave no answer within {timeout_s} s; allow more or try again later"
            ) from error
        except asyncio.CancelledError:
            ended = "given_up"
            raise
        finally:
            # The device thread looks at this between slices, because a future that runs cannot be cancelled.
            waiting.given_up = ended == "given_up"
            if after is not None and waiting.given_up:
                after.cancel()
            if waiting.queued_at is not None:
                self._observe_wait(waiting.waited_s, ended)
                if ended != "answered":
                    self._observe_unanswered(waiting.spent)
        return result

    def _put_after(self, waiting: QueuedRequest, after: "Future[Any]") -> None:
        """Queue a request that has been prepared, or fail it; on the thread that prepared it."""
        if after.cancelled():
            waiting.future.cancel()
            return
        error = after.exception()
        if error is None and not waiting.future.cancelled():
            try:
                self.thread.put(waiting)
            except ScorerUnavailableError as refusal:
                error = refusal
        if error is not None and waiting.future.set_running_or_notify_cancel():
            waiting.future.set_exception(error)

    def may_start(self, waiting: QueuedRequest, *, running: int, own: int) -> bool:
        """True while few batches are unfinished, or if it is the caller's only one or short."""
        most = MOST_UNFINISHED if own else 2 * MOST_UNFINISHED
        return running < most or 0 < waiting.cost <= self._max_cost

    def first_of(self, waiting: Sequence[QueuedRequest]) -> list[QueuedRequest]:
        """The next micro-batch, in order: up to its limits, and at least one request."""
        batch = list(waiting[:1])
        cost = batch[0].cost
        for one in waiting[1 : self._max_batch]:
            cost += one.cost
            # Not a smaller one behind it: requests of one kind begin in their order.
            if cost > self._most(batch, one):
                break
            batch.append(one)
        return batch

    def _most(self, batch: Sequence[QueuedRequest], one: QueuedRequest) -> float:
        """Most that a batch may cost with one more request."""
        if self._max_shared_cost is not None and one.caller != batch[0].caller:
            return self._max_shared_cost
        return self._max_cost or inf

    def slices(self, batch: Sequence[QueuedRequest]) -> Generator[None, None, None]:
        """Serve a batch on the device thread; cancelled requests cost nothing."""
        # From here on none can be cancelled, so each gets exactly one result or error.
        live = [w for w in batch if w.future.set_running_or_notify_cancel()]
        for waiting in live:
            waiting.taken_at = perf_counter()
        try:
            yield from self._serve(live)
        except BaseException as error:
            closed = isinstance(error, GeneratorExit)
            reason = "" if closed else f" of this batch ({type(error).__name__})"
            dead = ScorerUnavailableError(f"the device thread died{reason}; restart the server")
            _fail([w for w in live if not w.future.done()], dead)
            raise

    def _serve(self, live: Sequence[QueuedRequest]) -> Generator[None, None, None]:
        if not live:
            return
        try:
            results, run_s = yield from self._results(live)
        except Exception as error:  # a batch's failure is its callers' answer, not the thread's end
            if self.thread.is_lost(error):
                raise
            if len(live) == 1 or _fails_all_alike(error):
                clear_frames(error.__traceback__)  # the caller may keep it, and with it the tensors
                _fail(live, error)
                return
        else:
            self._observe(len(live), run_s)
            for waiting, result in zip(live, results, strict=True):
                waiting.future.set_result(result)
            return
        # Only here is the error gone, and with it what its traceback kept in the device's memory.
        half = len(live) // 2
        yield from self._serve(live[:half])
        yield from self._serve(live[half:])

    def _results(self, live: Sequence[QueuedRequest]) -> Generator[None, None, tuple[Sequence[Result], float]]:
        began = perf_counter()
        work = self._run_batch([w.request for w in live])
        run_s = perf_counter() - began
        if not isinstance(work, Generator):
            return work, run_s
        # What a failed run has cost stays: the halves that are run again come on top of it.
        before = [waiting.spent for waiting in live]
        try:
            spending = next(work)
            while True:
                yield
                if all(waiting.given_up for waiting in live):
                    raise _GivenUpError("all callers of this batch have left")
                for i, tokens in spending.items():
                    live[i].spent = total_of([before[i], tokens])
                began = perf_counter()
                spending = work.send(frozenset(i for i, w in enumerate(live) if w.given_up))
                run_s += perf_counter() - began
        except StopIteration as end:
            return end.value, run_s + perf_counter() - began
        finally:
            # Also after an error and when this is closed: what the batch has leased is given back.
            work.close()


class _GivenUpError(ScorerUnavailableError):
    """All callers of a batch have left, so this error is never reported."""


def _fails_all_alike(error: Exception) -> bool:
    """True where every request of the batch would fail alike, so that halving it is no use."""
    return isinstance(error, ScorerUnavailableError) and not isinstance(error, UnscorableError)


def _never_raising(observe: Callable[Params, None]) -> Callable[Params, None]:
    """The same function, whose failures are logged, the first one only, and never raised."""
    failed = False

    def told(*args: Params.args, **kwargs: Params.kwargs) -> None:
        nonlocal failed
        try:
            observe(*args, **kwargs)
        except Exception as error:
            if not failed:
                _log.error("what observes the device failed", exc_info=error)
            failed = True

    return told


def _fail(running: Sequence[QueuedRequest], error: Exception) -> None:
    for one in running:
        one.future.set_exception(error)


def is_lost(error: Exception) -> bool:
    """True if the device itself failed, rather than what it was asked for.

    After an illegal memory access, a failed assertion or a hardware fault, CUDA refuses everything
    that this process asks for later. A launch that was merely refused leaves the device usable, and
    so does a lack of memory, which is an `OutOfMemoryError`.
    """
    # Only a torch that is already imported can have raised an error of its own, and a server whose
    # models all run elsewhere has none.
    torch = sys.modules.get("torch")
    if torch is None or not isinstance(error, torch.AcceleratorError):
        return False
    try:
        torch.accelerator.synchronize()
    except RuntimeError:
        return True
    return False

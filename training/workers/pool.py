"""A fixed number of workers, each replaced by a new one when it is lost."""

import itertools
import logging
import threading
from collections.abc import Callable
from typing import Any

from qguide.training.processes.messages import (
    DeadlyRequestError,
    EnvironmentWorker,
    Request,
    WorkerClosedError,
    WorkerLostError,
)

_log = logging.getLogger(__name__)


class Seat:
    """One episode's place on a worker, under a number of its own."""

    def __init__(self, slot: "_Slot", worker: EnvironmentWorker, number: int) -> None:
        self._slot, self._worker, self._number = slot, worker, number

    def ask(self, method: str, *arguments: object) -> Any:
        """Call a method of the worker for this episode."""
        return self._slot.ask(self._worker, method, self._number, *arguments)

    def leave(self) -> None:
        """Let the worker close the episode with its next request; nothing waits for it."""
        self._slot.leave(self._worker, self._number)


class _Slot:
    """The place of one worker, and the one that is in it now."""

    def __init__(self, start: Callable[[], EnvironmentWorker], losses: list[str]) -> None:
        self._start = start
        self._losses = losses
        self._lock = threading.Lock()
        self._worker: EnvironmentWorker | None = None
        self._left: list[int] = []
        self.open = 0

    def worker(self) -> EnvironmentWorker:
        with self._lock:
            if self._worker is None:
                self._worker = self._start()
            return self._worker

    def ask(self, worker: EnvironmentWorker, method: str, *arguments: object) -> Any:
        with self._lock:
            closed: tuple[int, ...] = ()
            if self._worker is worker:  # else they are episodes of the worker after it
                closed, self._left = tuple(self._left), []
        try:
            reply = worker.ask(Request(method, arguments, closed))
        except WorkerLostError as error:
            with self._lock:
                if self._worker is worker:
                    self._worker = None
            if not isinstance(error, WorkerClosedError):  # who waited for it meanwhile is told that it is closed
                self._losses.append(str(error))
                _log.warning("%s", error)
            raise
        return reply.result()

    def leave(self, worker: EnvironmentWorker, number: int) -> None:
        with self._lock:
            self.open -= 1
            if self._worker is worker:
                self._left.append(number)

    def close(self) -> None:
        with self._lock:
            worker, self._worker = self._worker, None
        if worker is not None:
            worker.close()


class WorkerPool:
    """Workers of one kind."""

    def __init__(
        self, start: Callable[[], EnvironmentWorker], count: int, *, leave: Callable[[], None] = lambda: None
    ) -> None:
        """Start all of them, without waiting until they are ready.

        Args:
            leave: gives back what all of them share, when they are closed.
        """
        self._leave = leave
        self.losses: list[str] = []
        self._slots = [_Slot(start, self.losses) for _ in range(count)]
        self._numbers = itertools.count()
        self._lock = threading.Lock()
        for slot in self._slots:
            slot.worker()

    def seat(self) -> Seat:
        """A seat on the worker that has the fewest open episodes."""
        with self._lock:
            slot = min(self._slots, key=lambda one: one.open)
            slot.open += 1
            number = next(self._numbers)
        return Seat(slot, slot.worker(), number)

    def ask(self, method: str, *arguments: object) -> Any:
        """Call a method that belongs to no episode; tried again on a new worker."""
        losses = 0
        while True:
            slot = min(self._slots, key=lambda one: one.open)
            try:
                return slot.ask(slot.worker(), method, *arguments)
            except WorkerClosedError:
                continue
            except WorkerLostError as error:
                losses += 1
                if losses == MAX_WORKER_LOSSES:
                    raise DeadlyRequestError(
                        f"{losses} workers were lost during {method}; the last: {error}"
                    ) from error

    def close(self) -> None:
        """End all workers; safe to call twice."""
        for slot in self._slots:
            slot.close()
        self._leave()


MAX_WORKER_LOSSES = 3
"""Workers that one call may cost, before it counts as what kills them."""

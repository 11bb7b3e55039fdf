"""Reading ahead: a history goes into a scorer's prefix cache before its candidates exist.

While a hosted model draws, the device may have nothing to do. The history is then read pass by
pass, each only when no request waits for the device, and the candidates find what has been read.
"""

from collections.abc import Callable
from concurrent.futures import CancelledError, Future
from functools import partial
from threading import Lock
from typing import Any

from qguide.qnet.device.device_thread import DeviceThread
from qguide.qnet.device.history_reader import HistoryReader
from qguide.qnet.errors import QGuideError
from qguide.qnet.types import ScoreRequest


class ReadAhead:
    """One history that is being read ahead, until it is stopped.

    Args:
        characters: of the history, about as many as are new to the scorer.
        when_read: called once all of the history has been read, on the device thread.
    """

    def __init__(
        self,
        scorer: HistoryReader,
        thread: DeviceThread,
        request: ScoreRequest,
        *,
        characters: int,
        when_read: Callable[[], None] = lambda: None,
    ) -> None:
        self._scorer = scorer
        self._thread = thread
        self._when_read = when_read
        self._lock = Lock()
        self._stopped = False
        self._tokens = 0
        self._reading: Future[None] | None = None
        self._preparing = thread.tokenizing(
            partial(scorer.prepare_history, request), characters=characters
        )
        self._preparing.add_done_callback(self._begin)

    def stop(self) -> int:
        """Stop before the next pass; returns the number of tokens that were computed.

        What was read stays in the cache.
        """
        with self._lock:
            self._stopped = True
        self._preparing.cancel()
        if self._reading is not None:
            self._reading.cancel()
        return self._tokens

    def wait(self, timeout_s: float) -> None:
        """Wait until the whole history has been read, at most so long; for tests and benchmarks."""
        self._preparing.result(timeout_s)
        if self._reading is not None:
            self._reading.result(timeout_s)

    def _begin(self, preparing: "Future[Any]") -> None:
        """Start to read; on the thread that prepared the tokens."""
        try:
            prepared = preparing.result()
        except (QGuideError, CancelledError):  # the request that scores is told the same
            return
        with self._lock:
            if self._stopped or prepared is None:
                return
            self._reading = self._thread.when_idle(
                self._scorer.read_ahead(prepared, begin=self._count)
            )
        self._reading.add_done_callback(self._end)

    def _end(self, reading: "Future[None]") -> None:
        if not reading.cancelled() and reading.exception() is None:
            self._when_read()

    def _count(self, tokens: int) -> None:
        self._tokens += tokens

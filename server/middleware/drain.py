"""Graceful shutdown: SIGTERM fails readiness, refuses new requests and waits for running ones."""

import signal
from time import monotonic
from types import FrameType

import uvicorn

from server.errors.types import DrainingError


class Drain:
    """Flag that is set while the server shuts down."""

    def __init__(self) -> None:
        self.draining = False

    def check(self) -> None:
        """Refuse a new request during shutdown.

        Raises:
            DrainingError: the server is shutting down.
        """
        if self.draining:
            raise DrainingError("the server is shutting down; retry, another replica will answer")


class DrainingServer(uvicorn.Server):
    """uvicorn server that keeps listening for a while after SIGTERM.

    Load balancers then see the failing readiness check before connections are refused. A second
    SIGTERM, or SIGINT at any time, skips the delay. Requests in flight are waited for in either
    case, up to `timeout_graceful_shutdown` of the configuration.

    Args:
        delay_s: time from the signal until the server stops listening.
    """

    def __init__(self, config: uvicorn.Config, drain: Drain, *, delay_s: float) -> None:
        super().__init__(config)
        self._drain = drain
        self._delay_s = delay_s
        self._leave_at: float | None = None

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Begin to drain; at the second signal, shut down at once."""
        first = not self._drain.draining
        self._drain.draining = True
        if sig == signal.SIGTERM and first and self._delay_s:
            self._leave_at = monotonic() + self._delay_s
            self._captured_signals.append(sig)
        else:
            super().handle_exit(sig, frame)

    async def on_tick(self, counter: int) -> bool:
        """True if the server should stop listening; uvicorn asks ten times per second."""
        is_due = self._leave_at is not None and monotonic() >= self._leave_at
        return await super().on_tick(counter) or is_due

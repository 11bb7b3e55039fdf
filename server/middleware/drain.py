"""Graceful shutdown: readiness fails first, then new requests are refused; running ones end."""

import faulthandler
import signal
from time import monotonic
from types import FrameType
from typing import Final

import uvicorn

from qguide.server.errors.types import DrainingError

_REFUSAL_S: Final = 0.5
"""Time before the server stops listening in which clients on open connections are told to go."""


_CLOSING_S: Final = 5.0
"""Time after the last limit in which models and connections are closed."""


class Drain:
    """State of a server that shuts down.

    Attributes:
        draining: readiness fails, so that no new clients come.
        refusing: new requests are refused as well.
    """

    def __init__(self) -> None:
        self.draining = False
        self.refusing = False

    def check(self) -> None:
        """Refuse a new request at the end of a shutdown."""
        if self.refusing:
            raise DrainingError("the server is shutting down; retry, another replica will answer")


class DrainingServer(uvicorn.Server):
    """uvicorn server that goes on serving for a while after SIGTERM, and then ends in any case.

    Load balancers then see the failing readiness check before requests are refused. A second
    SIGTERM, or SIGINT at any time, skips the delay. Requests in flight are waited for in either
    case, up to `timeout_graceful_shutdown` of the configuration.

    Args:
        delay_s: time from the signal until new requests are refused.
        ends_hard: end the process if it is still there some seconds after all limits have passed,
            because a thread or the event loop is stuck. Only for a process that is nothing but
            this server.
    """

    def __init__(
        self, config: uvicorn.Config, drain: Drain, *, delay_s: float, ends_hard: bool = False
    ) -> None:
        super().__init__(config)
        self._drain = drain
        self._delay_s = delay_s
        self._ends_hard = ends_hard
        self._leave_at: float | None = None

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Begin to drain; at the second signal, shut down at once."""
        first = not self._drain.draining
        self._drain.draining = True
        if self._ends_hard:
            self._end_hard_after(self._delay_s + _REFUSAL_S if first else 0.0)
        if sig == signal.SIGTERM and first and self._delay_s:
            self._leave_at = monotonic() + self._delay_s
            self._captured_signals.append(sig)
        else:
            self._drain.refusing = True
            super().handle_exit(sig, frame)

    def _end_hard_after(self, delay_s: float) -> None:
        """Arm a thread outside Python, which needs neither the event loop nor the GIL.

        It writes what every thread was doing to stderr: files, lines and functions, no values.
        """
        grace_s = self.config.timeout_graceful_shutdown or 0
        faulthandler.dump_traceback_later(delay_s + grace_s + _CLOSING_S, exit=True)

    async def on_tick(self, counter: int) -> bool:
        """True if the server should stop listening; uvicorn asks ten times per second."""
        is_due = self._leave_at is not None and monotonic() >= self._leave_at
        if is_due and not self._drain.refusing:
            self._drain.refusing = True
            self._leave_at = monotonic() + _REFUSAL_S
            is_due = False
        return await super().on_tick(counter) or is_due

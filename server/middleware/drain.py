"""An orderly end: SIGTERM turns readiness red, refuses what is new and waits for the rest."""

import signal
from time import monotonic
from types import FrameType

import uvicorn

from server.errors.types import DrainingError


class Drain:
    """Whether the server is about to end."""

    def __init__(self) -> None:
        self.draining = False

    def check(self) -> None:
        """Take nothing new any more.

        Raises:
            DrainingError: the server is about to end.
        """
        if self.draining:
            raise DrainingError("the server is about to end; ask again, another will answer")


class DrainingServer(uvicorn.Server):
    """Keeps listening for a while after SIGTERM, so that load balancers see the red light first.

    A second SIGTERM, or SIGINT at any time, goes without the delay. Requests in flight are waited
    for either way, as long as `timeout_graceful_shutdown` of the configuration says.

    Args:
        delay_s: from the signal to the closing of the door.
    """

    def __init__(self, config: uvicorn.Config, drain: Drain, *, delay_s: float) -> None:
        super().__init__(config)
        self._drain = drain
        self._delay_s = delay_s
        self._leave_at: float | None = None

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Begin to drain, or end at once when told twice."""
        first = not self._drain.draining
        self._drain.draining = True
        if sig == signal.SIGTERM and first and self._delay_s:
            self._leave_at = monotonic() + self._delay_s
            self._captured_signals.append(sig)
        else:
            super().handle_exit(sig, frame)

    async def on_tick(self, counter: int) -> bool:
        """Whether to leave; ten times in a second."""
        late = self._leave_at is not None and monotonic() >= self._leave_at
        return await super().on_tick(counter) or late

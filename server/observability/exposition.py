"""The page of /metrics, which is rendered beside the event loop and kept for a second.

Rendering some thousands of series takes tens of milliseconds, and scrapes have no limits, so that
they go on when a key's are used up.
"""

import asyncio
import math
from collections.abc import Callable
from time import monotonic
from typing import Final

from prometheus_client import generate_latest

from qguide.server.observability.metrics import Metrics

KEPT_S: Final = 1.0


class Exposition:
    """Metrics as text; scrapes of the same second share one page.

    Args:
        kept_s: time for which a page is served again.
    """

    def __init__(self, metrics: Metrics, *, kept_s: float = KEPT_S, clock: Callable[[], float] = monotonic) -> None:
        self._metrics = metrics
        self._kept_s = kept_s
        self._clock = clock
        self._page = b""
        self._fresh_until_s = -math.inf
        self._rendering: asyncio.Task[bytes] | None = None

    async def page(self) -> bytes:
        """The page of this second, in Prometheus text format."""
        if self._clock() < self._fresh_until_s:
            return self._page
        if self._rendering is None:
            self._rendering = asyncio.create_task(self._render())
        return await asyncio.shield(self._rendering)

    async def _render(self) -> bytes:
        try:
            self._metrics.read_load()
            self._page = await asyncio.to_thread(generate_latest, self._metrics.registry)
            self._fresh_until_s = self._clock() + self._kept_s
            return self._page
        finally:
            self._rendering = None

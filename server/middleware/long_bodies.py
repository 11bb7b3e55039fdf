"""Fair turns at the event loop for parsing long bodies.

Parsing and validating a body of a megabyte blocks the event loop for some milliseconds; several in
a row would delay every short request at each of its steps.
"""

import asyncio
from collections.abc import Callable
from time import perf_counter
from typing import Final

from qnet.device.fair_queue import FairQueue

LONG_BYTES: Final = 65_536
"""Size from which a body is long: parsing it takes longer than the rest of its request."""

_REST: Final = 3.0
"""Pause after a turn, as a multiple of its duration, in which the loop serves others."""
_LONGEST_REST_S: Final = 0.1
"""Limit of the pause, for when the machine itself stood still during a turn."""


class LongBodyTurns:
    """Lets one long body be parsed at a time, fairly between keys, with a pause after each.

    A turn ends when its task first awaits something. The key that has used the event loop least is
    next. The pause applies even if no body is waiting: long bodies get at most a quarter of the
    loop, which is hundreds of megabytes per second.

    Args:
        clock: monotonic clock in seconds.
    """

    def __init__(self, *, clock: Callable[[], float] = perf_counter) -> None:
        self._clock = clock
        self._queue = FairQueue[asyncio.Future[None]]()
        self._taken = False

    async def take(self, caller: str) -> None:
        """Wait for a turn, which lasts until the task awaits something again."""
        if self._taken:
            await self._wait(caller)
        self._taken = True
        self._queue.serve(self._queue.used_s(caller))
        asyncio.get_running_loop().call_soon(self._end, caller, self._clock())

    async def _wait(self, caller: str) -> None:
        called = asyncio.get_running_loop().create_future()
        self._queue.add(caller, called)
        try:
            await called
        except asyncio.CancelledError:
            if not called.cancelled():  # cancelled just after its turn had begun
                self._call_next()
            raise

    def _end(self, caller: str, began_s: float) -> None:
        """Charge the turn to its caller, and start the next one after the pause."""
        used_s = self._clock() - began_s
        self._queue.charge({caller: used_s})
        asyncio.get_running_loop().call_later(min(_REST * used_s, _LONGEST_REST_S), self._call_next)

    def _call_next(self) -> None:
        live = [called for _, called in self._queue if not called.done()]
        self._queue.keep({id(called) for called in live[1:]})
        self._taken = bool(live)
        if live:
            live[0].set_result(None)

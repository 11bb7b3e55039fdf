"""Turns at the event loop for long bodies.

A body of a megabyte is parsed and checked in one go of some milliseconds, in which the event loop
serves nobody else; several in a row keep every short request waiting at each of its steps.
"""

import asyncio
from collections.abc import Callable
from time import perf_counter
from typing import Final

from qnet.device.fair_queue import FairQueue

LONG_BYTES: Final = 65_536
"""A body of more is a long one: parsing and checking takes longer than the rest of its request."""

_REST: Final = 3.0
"""Times its own length that the loop is left to others after a turn."""
_LONGEST_REST_S: Final = 0.1
"""Where the machine itself stood still for seconds, long bodies need not wait as long again."""


class LongBodyTurns:
    """Lets one long body at a time be parsed, each key's in turn, with a rest after each.

    A turn ends where its task first waits for something. The key that has had the least of the
    event loop is next. The rest holds whether others are waiting or not: long bodies have at most a
    quarter of the loop, which is hundreds of megabytes in a second.

    Args:
        clock: seconds that never go back.
    """

    def __init__(self, *, clock: Callable[[], float] = perf_counter) -> None:
        self._clock = clock
        self._queue = FairQueue[asyncio.Future[None]]()
        self._taken = False

    async def take(self, caller: str) -> None:
        """Wait for a turn; what follows, up to the task's next wait, is within it."""
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
            if not called.cancelled():  # its turn had just begun
                self._call_next()
            raise

    def _end(self, caller: str, began_s: float) -> None:
        """Charge the turn, and call the next one after the rest."""
        used_s = self._clock() - began_s
        self._queue.charge({caller: used_s})
        asyncio.get_running_loop().call_later(min(_REST * used_s, _LONGEST_REST_S), self._call_next)

    def _call_next(self) -> None:
        live = [called for _, called in self._queue if not called.done()]
        self._queue.keep({id(called) for called in live[1:]})
        self._taken = bool(live)
        if live:
            live[0].set_result(None)

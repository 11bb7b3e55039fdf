"""Long bodies, read in a thread of their own: one at a time, fairly between keys.

Parsing and validating a body of a megabyte takes some milliseconds, and one of very many values a tenth of a second, as
does its translation from another dialect. On the event loop every other request would stand still for as long.
"""

import asyncio
import gc
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from time import perf_counter
from typing import Final, TypeVar

from qguide.qnet.turns import FairQueue, resting

T = TypeVar("T")

LONG_BYTES: Final = 65_536
"""Size from which a body is long: parsing it takes longer than the rest of its request."""
LONG_VALUES: Final = 2_000
"""Likewise for its number of values, commas and brackets in texts included."""
_REST: Final = 3.0
"""Pause after a turn, as a multiple of its time on the event loop, in which the loop serves others.

A turn ends when its task first awaits something after its body was read.
"""
_LONGEST_REST_S: Final = 0.1  # limit of the pause, for when the machine itself stood still during a turn
_FEW_OBJECTS_S: Final = 0.01  # work of less time makes few objects: a collection walks them in some milliseconds
_FULL_COLLECTION_S: Final = 100.0
"""Work of more time than that, after which a full collection stops every thread for most of a second."""
_MOST_FREEZES: Final = 500  # likewise, because cycles that nobody has any more may be among what each freezes


class LongBodies:
    """The thread, and the turns at it; the key that has used it least is next."""

    def __init__(self, *, clock: Callable[[], float] = perf_counter) -> None:
        self._clock = clock
        self._queue = FairQueue[asyncio.Future[None]]()
        self._taken = False
        self._frozen_s, self._freezes = 0.0, 0
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="long-body")

    async def work(self, caller: str, work: Callable[[], T]) -> T:
        """The result of `work`, which runs in the thread when it is the caller's turn.

        A caller that hangs up keeps its turn until its work is done.
        """
        if self._taken:
            await self._wait(caller)
        self._taken = True
        self._queue.serve(self._queue.used_s(caller))
        began_s = self._clock()
        working = self._thread.submit(self._without_collector, work)
        try:
            return await asyncio.shield(asyncio.wrap_future(working))
        finally:
            self._end_after(working, partial(self._end, caller, began_s))

    def close(self) -> None:
        """Let the thread end."""
        self._thread.shutdown(wait=False, cancel_futures=True)

    async def _wait(self, caller: str) -> None:
        called = asyncio.get_running_loop().create_future()
        self._queue.add(caller, called)
        try:
            await called
        except asyncio.CancelledError:
            if not called.cancelled():  # cancelled just after its turn had begun
                self._call_next()
            raise

    def _end_after(self, working: "Future[T]", end: Callable[[float], None]) -> None:
        loop = asyncio.get_running_loop()
        if working.done():
            loop.call_soon(end, self._clock())  # after the task's next steps on the loop
        else:
            working.add_done_callback(lambda _: loop.call_soon_threadsafe(end, self._clock()))

    def _end(self, caller: str, began_s: float, worked_s: float) -> None:
        """Charge the turn to its caller, and start the next one after the pause."""
        now_s = self._clock()
        self._queue.charge({caller: now_s - began_s})
        pause_s = min(_REST * (now_s - worked_s), _LONGEST_REST_S)
        asyncio.get_running_loop().call_later(pause_s, self._call_next)

    def _call_next(self) -> None:
        # In the order of the clocks: the first is of the key that has had the least.
        live = [called for _, called in self._queue if not called.done()]
        self._queue.keep({id(called) for called in live[1:]})
        self._taken = bool(live)
        if live:
            live[0].set_result(None)

    def _without_collector(self, work: Callable[[], T]) -> T:
        """The result of `work`, which rests, and during which no garbage is collected.

        Each of many thousands of new objects would be walked ten times, and other threads stand still during each walk.
        There is one such thread, so nobody else turns the collector on.
        """
        began_s = perf_counter()
        was_enabled = gc.isenabled()
        gc.disable()
        try:
            with resting():
                return work()
        finally:
            worked_s = perf_counter() - began_s
            if worked_s > _FEW_OBJECTS_S:
                self._freeze(worked_s)
            if was_enabled:
                gc.enable()

    def _freeze(self, worked_s: float) -> None:
        """Keep what is new from the next collection, which would walk all of it at once.

        What `qguide serve` froze stays frozen: thawed, it would be walked by every full collection. Frozen objects end
        with their last reference; cycles among them wait for a full collection.
        """
        self._frozen_s += worked_s
        self._freezes += 1
        if self._frozen_s > _FULL_COLLECTION_S or self._freezes > _MOST_FREEZES:
            self._frozen_s, self._freezes = 0.0, 0
            gc.unfreeze()
            gc.collect()
        gc.freeze()

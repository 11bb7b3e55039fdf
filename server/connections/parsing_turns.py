"""Turns at the event loop for connections whose data is very many small pieces.

Each chunk of a body, and each header, is a call of the parser from C into Python: 256 KiB of chunks
of one byte are 40,000 of them, and take a tenth of a second.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from time import perf_counter
from typing import Final

from uvicorn.protocols.http.flow_control import FlowControl

_REST: Final = 3.0
"""Pause after a turn, as a multiple of its duration: all such connections together get at most a
quarter of the event loop, however many they are."""
_LONGEST_REST_S: Final = 0.1
"""Limit of the pause, for when the machine itself stood still during a turn."""


class ParsingTurns:
    """Lets one connection parse some of its data at a time, in order of arrival."""

    def __init__(self, *, clock: Callable[[], float] = perf_counter) -> None:
        self._clock = clock
        self._waiting: deque[Callable[[], None]] = deque()
        self._taken = False

    def add(self, turn: Callable[[], None]) -> None:
        """Call `turn` once it is next; it may add itself again."""
        self._waiting.append(turn)
        if not self._taken:
            self._taken = True
            asyncio.get_running_loop().call_soon(self._take)

    def _take(self) -> None:
        if not self._waiting:
            self._taken = False
            return
        began_s = self._clock()
        try:
            self._waiting.popleft()()
        finally:
            rest_s = min(_REST * (self._clock() - began_s), _LONGEST_REST_S)
            asyncio.get_running_loop().call_later(rest_s, self._take)


class HeldFlow(FlowControl):
    """Flow control that keeps a connection from being read while its data waits for a turn."""

    _held = False

    def hold(self) -> None:
        """Stop reading."""
        self._held = True
        self.pause_reading()

    def let_go(self, *, read_on: bool) -> None:
        """Leave it to uvicorn again when to read; `read_on` does so now."""
        self._held = False
        if read_on:
            self.resume_reading()

    def resume_reading(self) -> None:
        """Read on unless it is held."""
        if not self._held:
            super().resume_reading()

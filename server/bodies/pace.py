"""Rests of a thread that parses or validates for long, so that other threads get the interpreter.

Parsing holds the interpreter's lock for as long as it runs in C. The event loop would stand still
for as long, although the work is done in a thread.
"""

from collections.abc import Callable
from time import perf_counter, sleep
from typing import Final, TypeVar

T = TypeVar("T")

_WORK_S: Final = 0.001
"""Longest time without a rest, as far as the work asks for one often enough."""
_REST_S: Final = 0.001


class Pace:
    """Rests of one piece of work, taken between its parts.

    Args:
        clock: monotonic clock in seconds.
        rest: releases the interpreter's lock for a time in seconds.
    """

    def __init__(
        self,
        *,
        clock: Callable[[], float] = perf_counter,
        rest: Callable[[float], object] = sleep,
    ) -> None:
        self._clock = clock
        self._rest = rest
        self._rests_at_s = clock() + _WORK_S

    def keep(self, part: T) -> T:
        """Rest if it is time to; returns the part of the work that is done."""
        if self._clock() >= self._rests_at_s:
            self._rest(_REST_S)
            self._rests_at_s = self._clock() + _WORK_S
        return part

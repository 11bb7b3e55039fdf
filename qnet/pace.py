"""Rests of long work in a thread, so that the event loop and the device's thread go on beside it.

torch releases the interpreter's lock at every operation of a forward pass and waits for it again.
Beside a thread that never rests, a score takes ten times as long. `resting` sets the pace of a
thread's work; `paced` and `rested`, wherever many parts are read, keep it.
"""

import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
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


class _Current(threading.local):
    pace: Pace | None = None


_current = _Current()


@contextmanager
def resting(pace: Pace | None = None) -> Iterator[None]:
    """Let this thread's work rest during the block."""
    _current.pace = pace or Pace()
    try:
        yield
    finally:
        _current.pace = None


def rested(part: T) -> T:
    """The part of the work that is done, after a rest if this thread's work is due one."""
    return part if _current.pace is None else _current.pace.keep(part)


def paced(parts: Iterable[T]) -> Iterable[T]:
    """The parts, with rests between them if this thread's work rests."""
    return parts if _current.pace is None else map(_current.pace.keep, parts)

"""Turns of work that shares a device, a thread or the interpreter: rests, and a fair queue.

Rests: torch releases the interpreter's lock at every operation of a forward pass and waits for it
again. Beside a thread that never rests, a score takes ten times as long. `resting` sets the pace of
a thread's work; `paced` and `rested`, wherever many parts are read, keep it.

`FairQueue` is start-time fair queueing: the caller that has had the least time is served next. Each caller has a clock
of the time that it was given; the caller whose clock is furthest behind is served. The clock of a caller who comes back
after a pause is set to that of the caller who is being served, so that idling saves nothing up. In a round robin a
short request would wait for one turn of every busy caller; here it waits for the running turn alone.
"""

import threading
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from time import perf_counter, sleep
from typing import Final, Generic, TypeVar

T = TypeVar("T")
Item = TypeVar("Item")

_WORK_S: Final = 0.001  # longest time without a rest, as far as the work asks for one often enough
_REST_S: Final = 0.001


class Pace:
    """Rests of one piece of work, taken between its parts."""

    def __init__(self, *, clock: Callable[[], float] = perf_counter, rest: Callable[[float], object] = sleep) -> None:
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


@dataclass(slots=True)
class _CallerQueue(Generic[Item]):
    """One caller's waiting requests, the oldest first, and its clock."""

    waiting: deque[Item] = field(default_factory=deque)
    used_s: float = 0.0


class FairQueue(Generic[Item]):
    """Waiting items by caller. Not thread-safe. Clocks are never dropped: callers are few."""

    def __init__(self) -> None:
        self._queues: dict[str, _CallerQueue[Item]] = {}
        self._served_from_s = 0.0

    def __len__(self) -> int:
        return sum(len(queue.waiting) for queue in self._queues.values())

    def __iter__(self) -> Iterator[tuple[str, Item]]:
        """All items, those of the least served caller first, each caller's in order."""
        for caller in sorted(self._queues, key=self.used_s):
            yield from ((caller, item) for item in self._queues[caller].waiting)

    def add(self, caller: str, item: Item) -> None:
        """Put an item behind the caller's others."""
        queue = self._queues.setdefault(caller, _CallerQueue())
        queue.used_s = max(queue.used_s, self._served_from_s)
        queue.waiting.append(item)

    def longer_than(self, caller: str) -> str | None:
        """The caller with the most items, if it has more than this one would have with another."""
        longest = max(self._queues, key=lambda c: len(self._queues[c].waiting), default=caller)
        own = len(self._queues[caller].waiting) if caller in self._queues else 0
        return longest if self._queues and len(self._queues[longest].waiting) > own + 1 else None

    def pop_newest(self, caller: str) -> Item:
        """Take the last item of a caller that has one."""
        return self._queues[caller].waiting.pop()

    def keep(self, kept: Collection[int]) -> None:
        """Drop all items but those with these `id`s."""
        for queue in self._queues.values():
            queue.waiting = deque(item for item in queue.waiting if id(item) in kept)

    def used_s(self, caller: str) -> float:
        """The caller's clock."""
        return self._queues[caller].used_s if caller in self._queues else self._served_from_s

    def serve(self, used_s: float) -> None:
        """Note that work of a caller with this clock begins: clocks of new callers start there."""
        self._served_from_s = max(self._served_from_s, used_s)

    def charge(self, shares: Mapping[str, float]) -> None:
        """Set the clocks of callers forward by the device time that they were given."""
        for caller, seconds in shares.items():
            queue = self._queues.setdefault(caller, _CallerQueue(used_s=self._served_from_s))
            queue.used_s += seconds

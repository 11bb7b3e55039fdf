"""Requests that wait, by caller: the caller that has had the least of the device is served next.

This is start-time fair queueing. Each caller has a clock of the device time that it was given; the
clock that is furthest behind is served. Who comes back after a pause starts where the one who is
being served stands, so that idling saves nothing up. In a round robin a short request would wait
for one turn of every busy caller; here it waits for the turn that runs.
"""

from collections import deque
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Generic, TypeVar

Item = TypeVar("Item")


@dataclass(slots=True)
class _Lane(Generic[Item]):
    """One caller's requests, the oldest first, and the device time that it was given."""

    waiting: deque[Item] = field(default_factory=deque)
    used_s: float = 0.0


class FairQueue(Generic[Item]):
    """Items of callers. Not thread-safe. A caller's clock is kept for good: callers are few."""

    def __init__(self) -> None:
        self._lanes: dict[str, _Lane[Item]] = {}
        self._served_from_s = 0.0

    def __len__(self) -> int:
        return sum(len(lane.waiting) for lane in self._lanes.values())

    def __iter__(self) -> Iterator[tuple[str, Item]]:
        """All items, those of the least served caller first, each caller's in order."""
        for caller in sorted(self._lanes, key=self.used_s):
            yield from ((caller, item) for item in self._lanes[caller].waiting)

    def add(self, caller: str, item: Item) -> None:
        """Put an item behind the caller's others."""
        lane = self._lanes.setdefault(caller, _Lane())
        lane.used_s = max(lane.used_s, self._served_from_s)
        lane.waiting.append(item)

    def longer_than(self, caller: str) -> str | None:
        """The caller with the most items, if it has more than this one would have with another."""
        longest = max(self._lanes, key=lambda c: len(self._lanes[c].waiting), default=caller)
        own = len(self._lanes[caller].waiting) if caller in self._lanes else 0
        return longest if self._lanes and len(self._lanes[longest].waiting) > own + 1 else None

    def pop_newest(self, caller: str) -> Item:
        """Take the last item of a caller that has one."""
        return self._lanes[caller].waiting.pop()

    def keep(self, kept: Collection[int]) -> None:
        """Drop all items but those with these `id`s."""
        for lane in self._lanes.values():
            lane.waiting = deque(item for item in lane.waiting if id(item) in kept)

    def used_s(self, caller: str) -> float:
        """The caller's clock."""
        return self._lanes[caller].used_s if caller in self._lanes else self._served_from_s

    def serve(self, used_s: float) -> None:
        """Work of a caller with this clock begins: who comes now starts no earlier."""
        self._served_from_s = max(self._served_from_s, used_s)

    def charge(self, shares: Mapping[str, float]) -> None:
        """Set the clocks of callers forward by the device time that they were given."""
        for caller, seconds in shares.items():
            self._lanes.setdefault(caller, _Lane(used_s=self._served_from_s)).used_s += seconds

"""Store of open episodes: the protocol and the implementation in memory."""

import time
from collections import Counter, OrderedDict, defaultdict
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Protocol

from server.context.request_context import owner_of
from server.episodes.state import Episode

Change = Callable[[Episode | None], Episode]
"""Maps the stored episode, or None, to its new state; pure, because it may be called again."""


class EpisodeStore(Protocol):
    """Stores episodes for a limited time."""

    async def get(self, episode_id: str) -> Episode | None:
        """The episode, or None if it is unknown."""
        ...

    async def update(self, episode_id: str, change: Change) -> Episode:
        """Change an episode atomically.

        Exceptions of `change` propagate and leave the episode unchanged.
        """
        ...

    def claimed(self, episode_id: str) -> AbstractAsyncContextManager[bool]:
        """Claim the episode for the block; False if another replica has claimed it."""
        ...


class MemoryEpisodeStore:
    """Episodes as JSON in this process.

    Args:
        max_bytes: memory for all episodes. When it is full, the key that holds most loses its least
            recently used episode, so with K keys each is sure of a K-th of the memory.
        ttl_s: time without a step after which an episode expires.
        clock: monotonic clock in seconds.
    """

    def __init__(
        self, *, max_bytes: int, ttl_s: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._max_bytes = max_bytes
        self._ttl_s = ttl_s
        self._clock = clock
        # Not an `LRUCache`: episodes expire, and a full store drops those of its largest key.
        self._kept: OrderedDict[str, tuple[float, bytes]] = OrderedDict()
        self._of_owner: defaultdict[str, OrderedDict[str, None]] = defaultdict(OrderedDict)
        self._bytes: Counter[str] = Counter()

    @property
    def nbytes(self) -> int:
        """Size of all stored episodes in bytes."""
        return self._bytes.total()

    async def get(self, episode_id: str) -> Episode | None:
        """The episode, or None if it is unknown."""
        self._forget_old()
        return self._read(episode_id)

    async def update(self, episode_id: str, change: Change) -> Episode:
        """Change an episode atomically, because there is no `await` within."""
        self._forget_old()
        episode = change(self._read(episode_id))
        row = episode.model_dump_json().encode()
        self._drop(episode_id)
        self._keep(episode_id, row)
        while self._bytes.total() > self._max_bytes:
            [(largest, _)] = self._bytes.most_common(1)
            self._drop(next(iter(self._of_owner[largest])))
        return episode

    @asynccontextmanager
    async def claimed(self, episode_id: str) -> AsyncIterator[bool]:
        """True: no other replica knows the episode, and `Episodes` has a lock for it."""
        yield True

    def _read(self, episode_id: str) -> Episode | None:
        _, row = self._kept.get(episode_id, (0.0, None))
        return None if row is None else Episode.model_validate_json(row)

    def _forget_old(self) -> None:
        oldest = self._clock() - self._ttl_s
        while self._kept and next(iter(self._kept.values()))[0] < oldest:
            self._drop(next(iter(self._kept)))

    def _keep(self, episode_id: str, row: bytes) -> None:
        owner = owner_of(episode_id)
        self._kept[episode_id] = (self._clock(), row)
        self._of_owner[owner][episode_id] = None
        self._bytes[owner] += len(row)

    def _drop(self, episode_id: str) -> None:
        if episode_id not in self._kept:
            return
        _, row = self._kept.pop(episode_id)
        owner = owner_of(episode_id)
        del self._of_owner[owner][episode_id]
        self._bytes[owner] -= len(row)
        if not self._of_owner[owner]:
            del self._of_owner[owner], self._bytes[owner]

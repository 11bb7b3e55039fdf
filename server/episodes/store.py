"""Stores of episodes between their steps."""

import time
from collections import Counter, OrderedDict, defaultdict
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Protocol

from server.context.request_context import owner_of
from server.episodes.state import Episode

Change = Callable[[Episode | None], Episode]
"""From the kept episode, or None, to the one to keep; pure, so it may be called twice."""


class EpisodeStore(Protocol):
    """Keeps episodes for a while; one that was not touched for long may be gone."""

    async def get(self, episode_id: str) -> Episode | None:
        """The episode, if it is there."""
        ...

    async def update(self, episode_id: str, change: Change) -> Episode:
        """Change an episode as one: no other change comes between reading and writing.

        What `change` raises is raised, and nothing is kept of it.
        """
        ...

    def claimed(self, episode_id: str) -> AbstractAsyncContextManager[bool]:
        """True if nobody else has claimed the episode; it is this caller's for the block."""
        ...


class MemoryEpisodeStore:
    """Episodes as JSON in this process.

    Args:
        max_bytes: of all together. Where that is too little, the key that holds most loses its
            episode untouched for longest: with K keys, a K-th of the memory is safe from others.
        ttl_s: an episode untouched for longer is gone.
        clock: seconds that never go back.
    """

    def __init__(
        self, *, max_bytes: int, ttl_s: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._max_bytes = max_bytes
        self._ttl_s = ttl_s
        self._clock = clock
        self._kept: OrderedDict[str, tuple[float, bytes]] = OrderedDict()
        self._of_owner: defaultdict[str, OrderedDict[str, None]] = defaultdict(OrderedDict)
        self._bytes: Counter[str] = Counter()

    @property
    def nbytes(self) -> int:
        """Size of all episodes."""
        return self._bytes.total()

    async def get(self, episode_id: str) -> Episode | None:
        """The episode, if it is there."""
        self._forget_old()
        return self._read(episode_id)

    async def update(self, episode_id: str, change: Change) -> Episode:
        """Change an episode; there is no `await` in between, so nothing can come between."""
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
        """True: no other server knows the episode, and in this one `Episodes` takes turns."""
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

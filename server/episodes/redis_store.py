"""Store of episodes in Redis, shared by replicas, with a copy in memory.

Each replica also keeps its latest state of an episode in memory. So an episode that continues on
the same replica loses nothing while Redis is down, and its first step after that updates Redis.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from hashlib import sha256
from typing import Final, cast

from redis.exceptions import WatchError

from server.episodes.redis_budget import RedisEpisodeBudget
from server.episodes.state import Episode
from server.episodes.store import Change, MemoryEpisodeStore
from server.redis.client import NAMESPACE, RedisLink

_CLAIM_S: Final = 60
"""Longer than recording takes; the claim of a replica that died expires."""


class RedisEpisodeStore:
    """Episodes as JSON in Redis, and in memory.

    Args:
        own: the store in this process's memory.
        max_bytes: memory for all episodes in Redis; see `RedisEpisodeBudget`.
        ttl_s: time without a step after which an episode expires.
    """

    def __init__(
        self, link: RedisLink, own: MemoryEpisodeStore, *, max_bytes: int, ttl_s: float
    ) -> None:
        self._link = link
        self._budget = RedisEpisodeBudget(max_bytes=max_bytes, ttl_s=ttl_s)
        self._own = own
        self._ttl_ms = max(1, round(ttl_s * 1e3))

    async def get(self, episode_id: str) -> Episode | None:
        """The episode, or None if it is unknown."""
        own = await self._own.get(episode_id)

        async def shared() -> Episode | None:
            return _later(self._read(await self._link.client.get(_name(episode_id))), own)

        async def alone() -> Episode | None:
            return own

        return await self._link.use(shared, alone)

    async def update(self, episode_id: str, change: Change) -> Episode:
        """Change an episode atomically, retrying if another replica changes it meanwhile."""

        async def shared() -> Episode:
            name = _name(episode_id)
            async with self._link.client.pipeline() as pipe:
                while True:
                    await pipe.watch(name)
                    known = self._read(await pipe.get(name))
                    changed = change(_later(known, await self._own.get(episode_id)))
                    pipe.multi()  # type: ignore[no-untyped-call]
                    row = changed.model_dump_json().encode()
                    pipe.set(name, row, px=self._ttl_ms)
                    self._budget.count(pipe, episode_id, name=name, size=len(row))
                    try:
                        await pipe.execute()
                    except WatchError:
                        continue
                    break
            return await self._own.update(episode_id, lambda _: changed)

        return await self._link.use(shared, lambda: self._own.update(episode_id, change))

    @asynccontextmanager
    async def claimed(self, episode_id: str) -> AsyncIterator[bool]:
        """True if no other replica has claimed the episode; always true while Redis is down."""
        name = f"{_name(episode_id)}:claim"

        async def shared() -> bool:
            return bool(await self._link.client.set(name, b"", nx=True, ex=_CLAIM_S))

        async def give_back() -> None:
            await self._link.client.delete(name)

        mine = await self._link.use(shared, _unshared)
        try:
            yield mine
        finally:
            if mine:
                await self._link.use(give_back, _nothing)

    def _read(self, row: object) -> Episode | None:
        return self._link.read(cast("bytes | None", row), Episode.model_validate_json)


def _later(shared: Episode | None, own: Episode | None) -> Episode | None:
    """The more advanced of two states of an episode; on a tie the one in Redis."""
    if shared is None or own is None:
        return shared or own
    return own if _progress(own) > _progress(shared) else shared


async def _unshared() -> bool:
    return True


async def _nothing() -> None:
    """Fallback while Redis is down: the claim expires by itself."""


def _progress(episode: Episode) -> tuple[bool, bool, int]:
    return episode.outcome is not None, episode.recorded, episode.steps


def _name(episode_id: str) -> str:
    return f"{NAMESPACE}:episodes:{sha256(episode_id.encode()).hexdigest()}"

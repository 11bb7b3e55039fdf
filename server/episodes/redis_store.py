"""Episodes that servers share: in Redis while it is there, and in this process for when it is not.

Each server also keeps what it saw last of an episode. So one that goes on at the same server loses
nothing while Redis is gone, and Redis is told of it with the first step after it is back.
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
"""Longer than writing takes; a server that died of it keeps nobody from it for ever."""


class RedisEpisodeStore:
    """Episodes as JSON in Redis, and in memory.

    Args:
        own: this process's.
        max_bytes: of all episodes in Redis; see `RedisEpisodeBudget`.
        ttl_s: an episode untouched for longer is gone.
    """

    def __init__(
        self, link: RedisLink, own: MemoryEpisodeStore, *, max_bytes: int, ttl_s: float
    ) -> None:
        self._link = link
        self._budget = RedisEpisodeBudget(max_bytes=max_bytes, ttl_s=ttl_s)
        self._own = own
        self._ttl_ms = max(1, round(ttl_s * 1e3))

    async def get(self, episode_id: str) -> Episode | None:
        """The episode, if it is there."""
        own = await self._own.get(episode_id)

        async def shared() -> Episode | None:
            return _later(self._read(await self._link.client.get(_name(episode_id))), own)

        async def alone() -> Episode | None:
            return own

        return await self._link.use(shared, alone)

    async def update(self, episode_id: str, change: Change) -> Episode:
        """Change an episode; where another server comes between, it is changed once more."""

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
        """Whether no other server has claimed the episode; while Redis is gone nobody has."""
        name = f"{_name(episode_id)}:claim"

        async def shared() -> bool:
            return bool(await self._link.client.set(name, b"", nx=True, ex=_CLAIM_S))

        async def give_back() -> None:
            await self._link.client.delete(name)

        mine = await self._link.use(shared, _nobody_else)
        try:
            yield mine
        finally:
            if mine:
                await self._link.use(give_back, _nothing)

    def _read(self, row: object) -> Episode | None:
        return self._link.read(cast("bytes | None", row), Episode.model_validate_json)


def _later(shared: Episode | None, own: Episode | None) -> Episode | None:
    """Of two states of an episode the one that is further on; in doubt that in Redis."""
    if shared is None or own is None:
        return shared or own
    return own if _progress(own) > _progress(shared) else shared


async def _nobody_else() -> bool:
    return True


async def _nothing() -> None:
    """The claim expires."""


def _progress(episode: Episode) -> tuple[bool, bool, int]:
    return episode.outcome is not None, episode.recorded, episode.steps


def _name(episode_id: str) -> str:
    return f"{NAMESPACE}:episodes:{sha256(episode_id.encode()).hexdigest()}"

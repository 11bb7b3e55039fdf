"""Cache of paraphrased tasks, shared by replicas in Redis.

The key is a hash computed by `Paraphraser`; the value is the list of paraphrases.
"""

import json
from typing import Final, cast

from pydantic import TypeAdapter

from qguide.qnet.decision.perturbation import MemoryParaphraseCache
from qguide.server.redis.client import NAMESPACE, RedisLink

_TEXTS: Final = TypeAdapter(tuple[str, ...])
_TTL_S: Final = 7 * 24 * 3600


class RedisParaphraseCache:
    """Paraphrases in Redis, and in memory while Redis is down."""

    def __init__(self, link: RedisLink) -> None:
        self._link = link
        self._own = MemoryParaphraseCache()

    async def get(self, key: str) -> tuple[str, ...]:
        """The cached paraphrases of a task; empty if it is unknown."""

        async def shared() -> tuple[str, ...]:
            row = cast("bytes | None", await self._link.client.get(_name(key)))
            known = self._link.read(row, _TEXTS.validate_json)
            return await self._own.get(key) if known is None else known

        return await self._link.use(shared, lambda: self._own.get(key))

    async def put(self, key: str, texts: tuple[str, ...]) -> None:
        """Store the paraphrases of a task, replacing earlier ones."""
        await self._own.put(key, texts)

        async def shared() -> None:
            await self._link.client.set(_name(key), json.dumps(texts), ex=_TTL_S)

        await self._link.use(shared, _nothing)


async def _nothing() -> None:
    """Fallback while Redis is down: the copy in memory has been stored already."""


def _name(key: str) -> str:
    return f"{NAMESPACE}:paraphrases:{key}"

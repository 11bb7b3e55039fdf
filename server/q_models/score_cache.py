"""Cache of Q-values by checkpoint, history and candidates.

A Q model is deterministic, so identical requests have identical results. The key is a hash, so
that no text of a request leaves this process; the reasons of a judge that has criteria do. It
includes the caller's cache salt, because a cache hit would reveal that another caller has sent the
same request.
"""

import json
import math
import time
from collections.abc import Awaitable, Callable
from dataclasses import asdict
from hashlib import sha256
from typing import Any, Final, cast

from cachetools import TTLCache
from pydantic import FiniteFloat, TypeAdapter

from qguide.qnet.types import ScoreRequest, ScoreResult, Verdict
from qguide.qnet.usage import UpstreamCalls
from qguide.qnet.work_context import current_tenant
from qguide.server.redis.client import NAMESPACE, RedisLink

_MEMORY_ENTRIES: Final = 10_000
_Values = tuple[FiniteFloat, ...]
_ROW: Final = TypeAdapter[Any](
    tuple[_Values, int] | tuple[_Values, int, int] | tuple[_Values, int, int, tuple[Verdict, ...]]
)
"""Q-values, tokens and, of a scorer with an upstream, requests to it and verdicts by criteria."""


class ScoreCache:
    """Results by key, in Redis if configured and up, otherwise in memory."""

    def __init__(
        self,
        link: RedisLink | None,
        *,
        ttl_s: float,
        max_entries: int = _MEMORY_ENTRIES,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._link = link
        self._ttl_s = ttl_s
        self._kept = TTLCache[str, bytes](max_entries, ttl_s, timer=clock)

    async def score(
        self, request: ScoreRequest, ask: Callable[[ScoreRequest], Awaitable[ScoreResult]], *, content: str
    ) -> ScoreResult:
        """Score each candidate, from the cache if possible.

        Args:
            content: identifies the weights and their precision; a name does not, because it may
                refer to other weights later.
        """
        key = _key(content, request)
        if known := await self.get(key):
            return known
        result = await ask(request)
        if all(map(math.isfinite, result.q_values)):
            await self.put(key, result)
        return result

    async def get(self, key: str) -> ScoreResult | None:
        """The cached result, or None; all its tokens and its upstream's calls count as cached."""

        async def shared() -> ScoreResult | None:
            assert self._link is not None
            row = cast("bytes | None", await self._link.client.get(_name(key)))
            return self._link.read(row, _result)

        async def own() -> ScoreResult | None:
            row = self._kept.get(key)
            return None if row is None else _result(row)

        return await (self._link.use(shared, own) if self._link else own())

    async def put(self, key: str, result: ScoreResult) -> None:
        """Store a result."""
        tokens = result.computed_tokens + result.cached_tokens
        asked = result.upstream
        questions = [] if asked is None else [asked.calls + asked.cached_calls]
        verdicts = [[asdict(verdict) for verdict in result.verdicts]] if result.verdicts else []
        parts = [result.q_values, tokens, *questions, *verdicts]
        row = json.dumps(parts, allow_nan=False).encode()

        async def shared() -> None:
            assert self._link is not None
            await self._link.client.set(_name(key), row, px=max(1, round(self._ttl_s * 1e3)))

        async def own() -> None:
            self._kept[key] = row

        await (self._link.use(shared, own) if self._link else own())


def _key(content: str, request: ScoreRequest) -> str:
    state, candidates = ([message.key for message in messages] for messages in (request.history, request.candidates))
    observed = [[message.key for message in answer] for answer in request.observations]
    text = json.dumps([content, current_tenant().cache_salt, state, candidates, observed])
    return sha256(text.encode()).hexdigest()


def _result(row: bytes) -> ScoreResult:
    q_values, tokens, *more = _ROW.validate_json(row)
    asked = UpstreamCalls(cached_calls=more[0]) if more else None
    verdicts = more[1] if len(more) > 1 else ()
    return ScoreResult(q_values, 0, cached_tokens=tokens, upstream=asked, verdicts=verdicts)


def _name(key: str) -> str:
    return f"{NAMESPACE}:q:{key}"

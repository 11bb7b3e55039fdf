"""Cache of Q-values by checkpoint, history and candidates.

A Q model is deterministic, so identical requests have identical results. The key is a hash, so that no text of a
request leaves this process; the reasons of a judge that has criteria do. It includes the caller's cache salt, because a
cache hit would reveal that another caller has sent the same request.
"""

import json
import math
from collections.abc import Awaitable, Callable
from dataclasses import asdict
from hashlib import sha256
from typing import Any, Final

from pydantic import FiniteFloat, TypeAdapter

from qguide.qnet.types import ScoreRequest, ScoreResult, Verdict
from qguide.qnet.work import UpstreamCalls, current_tenant
from qguide.server.redis.client import SharedRows

_Values = tuple[FiniteFloat, ...]
_ROW: Final = TypeAdapter[Any](
    tuple[_Values, int] | tuple[_Values, int, int] | tuple[_Values, int, int, tuple[Verdict, ...]]
)
"""Q-values, tokens and, of a scorer with an upstream, requests to it and verdicts by criteria."""


class ScoreCache:
    """Results by key."""

    def __init__(self, rows: SharedRows) -> None:
        self._rows = rows

    async def score(
        self, request: ScoreRequest, ask: Callable[[ScoreRequest], Awaitable[ScoreResult]], *, content: str
    ) -> ScoreResult:
        """Score each candidate, from the cache if possible.

        All tokens of a cached result and its upstream's calls count as cached.

        Args:
            content: identifies the weights and their precision; a name does not, because it may refer to other weights
                later.
        """
        key = _key(content, request)
        if known := await self._rows.get(key, _result):
            return known
        result = await ask(request)
        if all(map(math.isfinite, result.q_values)):
            await self._rows.put(key, _row(result))
        return result


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


def _row(result: ScoreResult) -> bytes:
    asked = result.upstream
    questions = [] if asked is None else [asked.calls + asked.cached_calls]
    verdicts = [[asdict(verdict) for verdict in result.verdicts]] if result.verdicts else []
    parts = [result.q_values, result.computed_tokens + result.cached_tokens, *questions, *verdicts]
    return json.dumps(parts, allow_nan=False).encode()

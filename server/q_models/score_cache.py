"""Cache of Q-values by checkpoint, history and candidates.

A Q model is deterministic, so identical requests have identical results. The key is a hash, so that no text of a
request leaves this process; the reasons of a judge that has criteria do. It includes the caller's cache salt, because a
cache hit would reveal that another caller has sent the same request.
"""

import json
import math
from collections.abc import Awaitable, Callable
from dataclasses import replace
from hashlib import sha256
from typing import Final

from pydantic import TypeAdapter

from qguide.qnet.types import ScoreRequest, ScoreResult
from qguide.qnet.work import UpstreamCalls, current_tenant
from qguide.server.redis.client import SharedRows

_ROW: Final = TypeAdapter(ScoreResult)


async def cached_score(
    rows: SharedRows, request: ScoreRequest, ask: Callable[[ScoreRequest], Awaitable[ScoreResult]], *, content: str
) -> ScoreResult:
    """Score each candidate, from the cache if possible.

    All tokens of a cached result and its upstream's calls count as cached.

    Args:
        content: identifies the weights and their precision; a name does not, because it may refer to other weights
            later.
    """
    key = _key(content, request)
    if known := await rows.get(key, _ROW.validate_json):
        return known
    result = await ask(request)
    if all(map(math.isfinite, result.q_values)):
        await rows.put(key, _ROW.dump_json(_cached(result), exclude_defaults=True))
    return result


def _key(content: str, request: ScoreRequest) -> str:
    state, candidates = ([message.key for message in messages] for messages in (request.history, request.candidates))
    observed = [[message.key for message in answer] for answer in request.observations]
    text = json.dumps([content, current_tenant().cache_salt, state, candidates, observed])
    return sha256(text.encode()).hexdigest()


def _cached(result: ScoreResult) -> ScoreResult:
    """The result as it is told when it is asked for again."""
    asked = result.upstream
    return replace(
        result,
        computed_tokens=0,
        cached_tokens=result.computed_tokens + result.cached_tokens,
        upstream=asked and UpstreamCalls(cached_calls=asked.calls + asked.cached_calls),
    )

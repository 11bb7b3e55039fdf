"""Parts of several servers that share one Redis."""

import asyncio

from qguide.qnet.scoring.scripted import ScriptedScorer
from qguide.qnet.types import Message, ScoreRequest, ScoreResult
from qguide.server.episodes.redis_store import RedisEpisodeStore
from qguide.server.episodes.state import EpisodeChange, ServedEpisode
from qguide.server.episodes.store import MemoryEpisodeStore
from qguide.server.http.admission import Caller, Limiter
from qguide.server.http.errors import OverLimitError
from qguide.server.observability.request_context import Account
from qguide.server.q_models.score_cache import cached_score
from qguide.server.redis.client import RedisLink, SharedRows

ADA = Caller("ada", False, requests_per_minute=2, tokens_per_day=100)
STATE = (Message("user", "a secret place"),)
REQUEST = ScoreRequest(STATE, (Message("assistant", "go"), Message("assistant", "stay")))


async def until(link: RedisLink, *, up: bool) -> None:
    async with asyncio.timeout(30):
        while link.up != up:
            await asyncio.sleep(0.02)


async def admitted(limiter: Limiter, *, tokens: int = 0) -> bool:
    try:
        async with limiter.admit(ADA, account := Account()):
            account.tokens = tokens
    except OverLimitError:
        return False
    return True


class CountingScorer:
    """Counts how often it is asked; its Q can be spoilt."""

    name = "scripted"

    def __init__(self) -> None:
        self.asked = 0
        self.q_value = 0.5

    async def score(self, request: ScoreRequest) -> ScoreResult:
        """The same Q for every candidate."""
        self.asked += 1
        (scored,) = ScriptedScorer({}).score([request])
        return ScoreResult((self.q_value,) * len(scored.q_values), scored.computed_tokens, 0)


def stores(link: RedisLink, *, max_bytes: int = 10_000) -> list[RedisEpisodeStore]:
    """Of two servers."""
    return [
        RedisEpisodeStore(link, MemoryEpisodeStore(max_bytes=max_bytes, ttl_s=60), max_bytes=max_bytes, ttl_s=60)
        for _ in range(2)
    ]


def step(known: ServedEpisode | None) -> EpisodeChange:
    known = known or ServedEpisode(id="e")
    return EpisodeChange(known.model_copy(update={"steps": known.steps + 1}))


class CachedScorer:
    """A scorer behind a cache of its results."""

    def __init__(self, scorer: CountingScorer, rows: SharedRows, *, content: str) -> None:
        self._scorer = scorer
        self._rows = rows
        self._content = content

    async def score(self, request: ScoreRequest) -> ScoreResult:
        """Score each candidate, from the cache if possible."""
        return await cached_score(self._rows, request, self._scorer.score, content=self._content)

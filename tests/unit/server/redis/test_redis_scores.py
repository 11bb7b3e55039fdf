"""Scores that servers share through a real Redis, and from memory while it is gone."""

import pytest

from qguide.qnet.errors import ScorerUnavailableError
from qguide.qnet.types import Message, ScoreRequest, ScoreResult, ToolCall
from qguide.server.redis.client import RedisLink, SharedRows
from tests.support.redis_server import RedisServer
from tests.support.redis_users import REQUEST, STATE, CachedScorer, CountingScorer, until


async def test_a_known_state_is_scored_once_by_all_servers(link: RedisLink) -> None:
    scorers = [CountingScorer() for _ in range(2)]
    cached = [CachedScorer(s, SharedRows(link, "q", ttl_s=60), content="w") for s in scorers]
    first, again = [await scorer.score(REQUEST) for scorer in cached]
    assert again.q_values == first.q_values
    assert (again.computed_tokens, again.cached_tokens) == (0, first.computed_tokens)
    assert [s.asked for s in scorers] == [1, 0]


async def test_other_weights_candidates_or_time_are_other_questions() -> None:
    scorer, now = CountingScorer(), 0.0
    cache = SharedRows(None, "q", ttl_s=10, clock=lambda: now)
    await CachedScorer(scorer, cache, content="w").score(REQUEST)
    await CachedScorer(scorer, cache, content="w").score(REQUEST)
    assert scorer.asked == 1
    await CachedScorer(scorer, cache, content="other").score(REQUEST)
    await CachedScorer(scorer, cache, content="w").score(ScoreRequest(STATE, REQUEST.candidates[:1]))
    assert scorer.asked == 3
    now += 10
    await CachedScorer(scorer, cache, content="w").score(REQUEST)
    assert scorer.asked == 4


async def test_memory_keeps_so_many_and_no_broken_q() -> None:
    scorer = CountingScorer()
    cached = CachedScorer(scorer, SharedRows(None, "q", ttl_s=10, most=1), content="w")
    other = ScoreRequest(STATE, REQUEST.candidates[:1])
    for request in (REQUEST, other, REQUEST):
        await cached.score(request)
    assert scorer.asked == 3
    scorer.q_value = float("nan")
    for _ in range(2):
        await cached.score(other)
    assert scorer.asked == 5


async def test_a_scorers_failure_is_not_kept() -> None:
    class Failing(CountingScorer):
        async def score(self, request: ScoreRequest) -> ScoreResult:
            """Fail the first time."""
            result = await super().score(request)
            if self.asked == 1:
                raise ScorerUnavailableError("not now")
            return result

    cached = CachedScorer(Failing(), SharedRows(None, "q", ttl_s=10), content="w")
    with pytest.raises(ScorerUnavailableError):
        await cached.score(REQUEST)
    assert (await cached.score(REQUEST)).q_values == (0.5, 0.5)


async def test_ids_and_fields_that_no_q_model_reads_ask_for_the_same_score() -> None:
    scorer = CachedScorer(CountingScorer(), SharedRows(None, "q", ttl_s=60), content="w")
    results = []
    for number in range(2):
        call = ToolCall("go", '{"to": "desk"}', id=f"call_{number}")
        candidate = Message("assistant", "", (call,), wire={"refusal": number})
        request = ScoreRequest(STATE, (candidate, Message("assistant", "stay")))
        results.append(await scorer.score(request))
    assert results[0].computed_tokens > 0
    assert (results[1].computed_tokens, results[1].q_values) == (0, results[0].q_values)


async def test_scores_are_known_from_memory_while_redis_is_gone(redis: RedisServer, link: RedisLink) -> None:
    scorers = [CountingScorer() for _ in range(2)]
    one, two = (CachedScorer(s, SharedRows(link, "q", ttl_s=60), content="w") for s in scorers)
    await one.score(REQUEST)
    redis.kill()
    assert (await one.score(REQUEST)).q_values == (0.5, 0.5)
    assert not link.up
    redis.start()
    await until(link, up=True)
    for scorer in (one, two):
        await scorer.score(REQUEST)
    assert [s.asked for s in scorers] == [1, 1]

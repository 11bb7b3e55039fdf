"""With a real Redis: shared limits and scores, and what happens while it is gone."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from hashlib import sha256
from pathlib import Path
from typing import cast

import pytest
import structlog
from typer.testing import CliRunner

from qguide.cli import app as cli
from qnet.errors import ConfigError, ScorerUnavailableError
from qnet.scoring.value_head import ScriptedScorer
from qnet.types import Message, ScoreRequest, ScoreResult, ToolCall
from server.access.rate_limits import Caller, Limiter
from server.context.request_context import Account
from server.episodes.redis_store import RedisEpisodeStore
from server.episodes.state import Episode
from server.episodes.store import MemoryEpisodeStore
from server.errors.types import OverLimitError
from server.observability.metrics import Metrics
from server.q_models.score_cache import CachedScorer, ScoreCache
from server.redis.client import RedisLink
from server.redis.paraphrase_cache import RedisParaphraseCache
from tests.support.redis_server import RedisServer, require_redis

ADA = Caller("ada", False, requests_per_minute=2, tokens_per_day=100)
STATE = (Message("user", "a secret place"),)
REQUEST = ScoreRequest(STATE, (Message("assistant", "go"), Message("assistant", "stay")))


@pytest.fixture
def redis(tmp_path: Path) -> Iterator[RedisServer]:
    require_redis()
    server = RedisServer(tmp_path)
    server.start()
    yield server
    server.kill()


@pytest.fixture
async def link(redis: RedisServer) -> AsyncIterator[RedisLink]:
    link = RedisLink(redis.url, Metrics(), timeout_s=3.0, ping_every_s=0.05)
    async with link.watched():
        yield link


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


async def test_servers_count_together(link: RedisLink) -> None:
    one, two = (Limiter(link, concurrent_requests=0) for _ in range(2))
    assert await admitted(one)
    assert await admitted(two)
    for limiter in (one, two):
        with pytest.raises(OverLimitError) as refused:
            async with limiter.admit(ADA, Account()):
                pass
        assert 50 <= refused.value.retry_after_s <= 61


async def test_servers_share_a_budget_of_tokens(link: RedisLink) -> None:
    one, two = (Limiter(link, concurrent_requests=0) for _ in range(2))
    assert await admitted(one, tokens=100)
    with pytest.raises(OverLimitError, match="its 100 tokens of 24 hours"):
        async with two.admit(ADA, Account()):
            pass


@pytest.mark.parametrize("garbage", ["much", "", "1e9"])
async def test_a_counter_that_is_no_number_is_counted_anew(link: RedisLink, garbage: str) -> None:
    limiter = Limiter(link, concurrent_requests=0)
    assert await admitted(limiter, tokens=60)
    keys = await link.client.keys("qguide:limits:*")
    assert len(keys) == 2
    for key in keys:
        await link.client.set(key, garbage)
    assert [await admitted(limiter, tokens=60) for _ in range(3)] == [True, True, False]
    assert link.up
    for key in await link.client.keys("qguide:limits:*"):
        assert await link.client.pttl(key) > 0


async def test_garbage_in_one_counter_leaves_the_others_alone(link: RedisLink) -> None:
    limiter = Limiter(link, concurrent_requests=0)
    assert await admitted(limiter, tokens=100)
    [requests] = await link.client.keys("qguide:limits:*requests*")
    await link.client.delete(requests)
    await link.client.lpush(requests, "a", "list")
    assert not await admitted(limiter)  # the day's tokens are still used up
    assert link.up


@pytest.mark.parametrize(
    "url",
    [
        "localhost:6379",
        "http://localhost",
        "redis://localhost:port",
        "redis://:pa/ss@localhost:6379/0",
        "redis://localhost:99999",
        "redis://localhost/first",
        "redis://localhost?socket_timeout=long",
        "redis://localhost?no_such_option=1",
    ],
)
def test_a_url_of_no_redis_is_refused_without_its_password(url: str) -> None:
    with pytest.raises(ConfigError, match="QGUIDE_REDIS_URL") as refused:
        RedisLink(url, Metrics())
    assert "redis://[:PASSWORD@]HOST[:PORT][/DATABASE]" in str(refused.value)
    assert url not in str(refused.value)
    assert "'pa'" not in str(refused.value)


def test_serve_says_what_is_wrong_with_a_redis_url() -> None:
    options = ["serve", "--policy", "scripted", "--q-model", "scripted", "--port", "0"]
    result = CliRunner().invoke(cli, options, env={"QGUIDE_REDIS_URL": "localhost:6379"})
    assert result.exit_code == 1
    assert result.stderr.startswith("error: QGUIDE_REDIS_URL")


async def test_everything_in_redis_expires_and_holds_no_text(link: RedisLink) -> None:
    await admitted(Limiter(link, concurrent_requests=0), tokens=5)
    scorer = CachedScorer(ScriptedScorerAsync(), ScoreCache(link, ttl_s=60), content="w")
    await scorer.score(REQUEST)
    keys = await link.client.keys("*")
    assert len(keys) == 3
    for key in keys:
        assert isinstance(key, bytes)
        assert key.startswith(b"qguide:")
        assert b"secret" not in key
        assert await link.client.pttl(key) > 0
        assert b"secret" not in cast(bytes, await link.client.get(key))


async def test_redis_killed_and_back(redis: RedisServer, link: RedisLink) -> None:
    limiter = Limiter(link, concurrent_requests=0)
    assert [await admitted(limiter) for _ in range(3)] == [True, True, False]
    redis.kill()
    # From memory, which has counted nothing yet; nobody is let through for ever.
    assert [await admitted(limiter) for _ in range(3)] == [True, True, False]
    assert not link.up
    redis.start()
    await until(link, up=True)
    assert [await admitted(limiter) for _ in range(3)] == [True, True, False]


async def test_a_redis_that_hangs_costs_one_wait_and_no_more(
    redis: RedisServer, link: RedisLink
) -> None:
    limiter = Limiter(link, concurrent_requests=0)
    redis.freeze()
    try:
        async with asyncio.timeout(20):
            assert await admitted(limiter)
        assert not link.up
        async with asyncio.timeout(0.4):  # less than the time-out: Redis is not asked
            assert await admitted(limiter)
    finally:
        redis.thaw()
    await until(link, up=True)


async def test_a_redis_that_was_never_there_is_no_error() -> None:
    metrics = Metrics()
    link = RedisLink("redis://127.0.0.1:1/0", metrics, ping_every_s=60)
    async with link.watched():
        assert not link.up
        assert metrics.registry.get_sample_value("qguide_redis_up") == 0
        assert await admitted(Limiter(link, concurrent_requests=0))


class ScriptedScorerAsync:
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


async def test_a_known_state_is_scored_once_by_all_servers(link: RedisLink) -> None:
    scorers = [ScriptedScorerAsync() for _ in range(2)]
    cached = [CachedScorer(s, ScoreCache(link, ttl_s=60), content="w") for s in scorers]
    first, again = [await scorer.score(REQUEST) for scorer in cached]
    assert again.q_values == first.q_values
    assert (again.computed_tokens, again.cached_tokens) == (0, first.computed_tokens)
    assert [s.asked for s in scorers] == [1, 0]


async def test_other_weights_candidates_or_time_are_other_questions() -> None:
    scorer, now = ScriptedScorerAsync(), 0.0
    cache = ScoreCache(None, ttl_s=10, clock=lambda: now)
    await CachedScorer(scorer, cache, content="w").score(REQUEST)
    await CachedScorer(scorer, cache, content="w").score(REQUEST)
    assert scorer.asked == 1
    await CachedScorer(scorer, cache, content="other").score(REQUEST)
    await CachedScorer(scorer, cache, content="w").score(
        ScoreRequest(STATE, REQUEST.candidates[:1])
    )
    assert scorer.asked == 3
    now += 10
    await CachedScorer(scorer, cache, content="w").score(REQUEST)
    assert scorer.asked == 4


async def test_memory_keeps_so_many_and_no_broken_q() -> None:
    scorer = ScriptedScorerAsync()
    cached = CachedScorer(scorer, ScoreCache(None, ttl_s=10, max_entries=1), content="w")
    other = ScoreRequest(STATE, REQUEST.candidates[:1])
    for request in (REQUEST, other, REQUEST):
        await cached.score(request)
    assert scorer.asked == 3
    scorer.q_value = float("nan")
    for _ in range(2):
        await cached.score(other)
    assert scorer.asked == 5


async def test_a_scorers_failure_is_not_kept() -> None:
    class Failing(ScriptedScorerAsync):
        async def score(self, request: ScoreRequest) -> ScoreResult:
            """Fail the first time."""
            result = await super().score(request)
            if self.asked == 1:
                raise ScorerUnavailableError("not now")
            return result

    cached = CachedScorer(Failing(), ScoreCache(None, ttl_s=10), content="w")
    with pytest.raises(ScorerUnavailableError):
        await cached.score(REQUEST)
    assert (await cached.score(REQUEST)).q_values == (0.5, 0.5)


async def test_ids_and_fields_that_no_q_model_reads_ask_for_the_same_score() -> None:
    scorer = CachedScorer(ScriptedScorerAsync(), ScoreCache(None, ttl_s=60), content="w")
    results = []
    for number in range(2):
        call = ToolCall("go", '{"to": "desk"}', id=f"call_{number}")
        candidate = Message("assistant", "", (call,), wire={"refusal": number})
        request = ScoreRequest(STATE, (candidate, Message("assistant", "stay")))
        results.append(await scorer.score(request))
    assert results[0].computed_tokens > 0
    assert (results[1].computed_tokens, results[1].q_values) == (0, results[0].q_values)


def stores(link: RedisLink) -> list[RedisEpisodeStore]:
    """Of two servers."""
    return [
        RedisEpisodeStore(
            link, MemoryEpisodeStore(max_bytes=10_000, ttl_s=60), max_bytes=10_000, ttl_s=60
        )
        for _ in range(2)
    ]


def step(known: Episode | None) -> Episode:
    known = known or Episode(id="e")
    return known.model_copy(update={"steps": known.steps + 1})


async def test_servers_share_episodes_and_lose_no_step(link: RedisLink) -> None:
    one, two = stores(link)
    await asyncio.gather(*(store.update("e", step) for store in (one, two) for _ in range(5)))
    for store in (one, two):
        found = await store.get("e")
        assert found is not None
        assert found.steps == 10
    assert await one.get("another") is None
    [key] = await link.client.keys("qguide:episodes:*")
    assert 0 < await link.client.ttl(key) <= 60


def forgetful(link: RedisLink, *, max_bytes: int, ttl_s: float = 60) -> RedisEpisodeStore:
    """A server that keeps nothing itself."""
    own = MemoryEpisodeStore(max_bytes=0, ttl_s=ttl_s)
    return RedisEpisodeStore(link, own, max_bytes=max_bytes, ttl_s=ttl_s)


async def kept(store: RedisEpisodeStore, *ids: str) -> list[str]:
    """Ids of the episodes that the store still has."""
    return [episode_id for episode_id in ids if await store.get(episode_id) is not None]


async def test_a_key_that_opens_many_pushes_out_only_its_own_in_redis(link: RedisLink) -> None:
    size = len(step(None).model_dump_json())
    one, two = (forgetful(link, max_bytes=6 * size) for _ in range(2))
    for episode_id in ("ada/1", "ada/2", "bob/1"):
        await one.update(episode_id, step)
    for number in range(30):
        await (one, two)[number % 2].update(f"eve/{number % 10}", step)
    everybody = ["ada/1", "ada/2", "bob/1", "eve/6", "eve/7", "eve/8", "eve/9"]
    assert await kept(two, *everybody) == [name for name in everybody if name != "eve/6"]
    assert len(await link.client.keys("qguide:episodes:*")) == 6


async def test_the_budget_counts_an_episodes_present_size_once(link: RedisLink) -> None:
    size = len(step(None).model_dump_json())
    store = forgetful(link, max_bytes=3 * size + 20)
    for _ in range(5):
        for episode_id in ("ada/1", "ada/2", "bob/1"):
            await store.update(episode_id, step)
    assert await kept(store, "ada/1", "ada/2", "bob/1") == ["ada/1", "ada/2", "bob/1"]
    await store.update("bob/2", lambda _: Episode(id="e", broken="x" * 10 * size))
    assert await kept(store, "ada/1", "ada/2", "bob/1", "bob/2") == ["ada/1", "ada/2"]


async def test_expired_episodes_are_no_part_of_the_budget(link: RedisLink) -> None:
    size = len(step(None).model_dump_json())
    brief = forgetful(link, max_bytes=2 * size, ttl_s=0.05)
    await brief.update("ada/1", step)
    await brief.update("ada/2", step)
    await asyncio.sleep(0.2)
    await forgetful(link, max_bytes=2 * size, ttl_s=60.0).update("bob/1", step)
    assert await link.client.zrange("qguide:episode-index:owners", 0, -1, withscores=True) == [
        (sha256(b"bob").hexdigest().encode(), float(size))
    ]
    assert all([await link.client.pttl(key) > 0 for key in await link.client.keys("*index*")])


async def test_an_episode_goes_on_while_redis_is_gone_and_redis_hears_of_it(
    redis: RedisServer, link: RedisLink
) -> None:
    one, two = stores(link)
    await one.update("e", step)
    redis.kill()
    assert (await one.update("e", step)).steps == 2
    redis.start()
    await until(link, up=True)
    assert (await one.update("e", step)).steps == 3
    found = await two.get("e")
    assert found is not None
    assert found.steps == 3


async def test_servers_share_paraphrases_and_each_has_its_own_without_redis(
    redis: RedisServer, link: RedisLink
) -> None:
    one, two = (RedisParaphraseCache(link) for _ in range(2))
    await one.put("key", ("in other words", "said otherwise"))
    assert await two.get("key") == ("in other words", "said otherwise")
    assert await two.get("other") == ()
    redis.kill()
    assert await one.get("key") == ("in other words", "said otherwise")
    assert await two.get("key") == ()
    await two.put("key", ("again",))
    assert await two.get("key") == ("again",)


async def test_servers_share_paraphrases_again_once_redis_is_back(
    redis: RedisServer, link: RedisLink
) -> None:
    one, two = (RedisParaphraseCache(link) for _ in range(2))
    redis.kill()
    await one.put("key", ("meanwhile",))
    assert not link.up
    redis.start()
    await until(link, up=True)
    assert (await one.get("key"), await two.get("key")) == (("meanwhile",), ())
    await one.put("key", ("again",))
    assert await two.get("key") == ("again",)


async def test_scores_are_known_from_memory_while_redis_is_gone(
    redis: RedisServer, link: RedisLink
) -> None:
    scorers = [ScriptedScorerAsync() for _ in range(2)]
    one, two = (CachedScorer(s, ScoreCache(link, ttl_s=60), content="w") for s in scorers)
    await one.score(REQUEST)
    redis.kill()
    for _ in range(2):  # asked once more, then known here
        assert (await one.score(REQUEST)).q_values == (0.5, 0.5)
    assert not link.up
    redis.start()
    await until(link, up=True)
    for scorer in (one, two):
        await scorer.score(REQUEST)
    assert [s.asked for s in scorers] == [3, 0]


@pytest.mark.parametrize("row", [b"{", b'{"another": "version"}', b"[1]", b"\xff"])
async def test_a_row_of_another_version_is_none_and_said_once(link: RedisLink, row: bytes) -> None:
    scorer = ScriptedScorerAsync()
    cached = CachedScorer(scorer, ScoreCache(link, ttl_s=60), content="w")
    paraphrases, (episodes, _) = RedisParaphraseCache(link), stores(link)
    await cached.score(REQUEST)
    await paraphrases.put("key", ("in other words",))
    await episodes.update("e", step)
    for key in await link.client.keys("*"):
        await link.client.set(key, row)
    others, (newer, _) = RedisParaphraseCache(link), stores(link)
    with structlog.testing.capture_logs() as said:
        assert (await cached.score(REQUEST)).computed_tokens > 0
        assert await others.get("key") == ()
        assert await paraphrases.get("key") == ("in other words",)
        assert await newer.get("e") is None
        assert (await newer.update("e", step)).steps == 1
    assert link.up
    assert [line["event"] for line in said] == ["redis_row_unreadable"]
    assert (await cached.score(REQUEST)).computed_tokens == 0  # written anew

"""A real Redis that dies, hangs, comes back, was never there or holds foreign rows."""

import asyncio
import json
import time
from typing import cast

import pytest
import structlog
from typer.testing import CliRunner

from qguide.cli import app as cli
from qguide.qnet.errors import ConfigError
from qguide.server.http.admission import Limiter
from qguide.server.observability.metrics import Metrics
from qguide.server.redis.client import RedisLink, SharedRows
from tests.support.redis_server import RedisServer
from tests.support.redis_users import REQUEST, CachedScorer, CountingScorer, admitted, step, stores, until


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
    scorer = CachedScorer(CountingScorer(), SharedRows(link, "q", ttl_s=60), content="w")
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
    # A request whose answer was lost on the way counts twice, so the second may be refused.
    third = [await admitted(limiter) for _ in range(3)]
    assert third in ([True, True, False], [True, False, False])


async def test_connections_that_died_with_redis_are_not_used_once_it_is_back(
    redis: RedisServer, link: RedisLink
) -> None:
    async def shared() -> bool:
        return bool(await link.client.ping())

    async def own() -> bool:
        return False

    await asyncio.gather(*(link.use(shared, own) for _ in range(8)))
    redis.kill()
    await until(link, up=False)
    redis.start()
    await until(link, up=True)
    assert all(await asyncio.gather(*(link.use(shared, own) for _ in range(8))))
    assert link.up


async def test_redis_comes_back_though_old_connections_do_not_close(redis: RedisServer, link: RedisLink) -> None:
    async def hangs(*, inuse_connections: bool) -> None:
        raise TimeoutError("as of a TLS connection whose other end is gone")

    redis.kill()
    await until(link, up=False)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(link.client.connection_pool, "disconnect", hangs)
        redis.start()
        await until(link, up=True)


async def test_a_redis_that_hangs_costs_one_wait_and_no_more(redis: RedisServer, link: RedisLink) -> None:
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


@pytest.mark.parametrize(("repeatable", "times"), [(True, 2), (False, 1)])
async def test_a_process_that_was_busy_does_not_take_redis_for_gone(
    redis: RedisServer, repeatable: bool, times: int
) -> None:
    link = RedisLink(redis.url, Metrics(), timeout_s=1.0, ping_every_s=60)
    asks = []

    async def ask() -> bool:
        asks.append(1)
        if len(asks) == 1:  # the answer comes meanwhile, and so does its time-out
            asyncio.get_running_loop().call_later(0.1, time.sleep, 1.5)
        answer = await link.client.wait(1, 300)  # for a replica that is not there, 0.3 s
        return int(answer) == 0

    async def otherwise() -> bool:
        return not repeatable

    async with link.watched():
        assert await link.use(ask, otherwise, repeatable=repeatable)
        assert link.up
        assert len(asks) == times


async def test_a_redis_that_was_never_there_is_no_error() -> None:
    metrics = Metrics()
    link = RedisLink("redis://127.0.0.1:1/0", metrics, ping_every_s=60)
    async with link.watched():
        assert not link.up
        assert metrics.registry.get_sample_value("qguide_redis_up") == 0
        assert await admitted(Limiter(link, concurrent_requests=0))


def rows(link: RedisLink) -> SharedRows:
    return SharedRows(link, "texts", ttl_s=60)


async def test_servers_share_rows_and_each_has_its_own_without_redis(redis: RedisServer, link: RedisLink) -> None:
    one, two = rows(link), rows(link)
    await one.put("key", b'"shared"')
    assert await two.get("key", json.loads) == "shared"
    assert await two.get("other", json.loads) is None
    redis.kill()
    assert (await one.get("key", json.loads), await two.get("key", json.loads)) == ("shared", None)
    await two.put("key", b'"own"')
    assert (await one.get("key", json.loads), await two.get("key", json.loads)) == ("shared", "own")
    redis.start()
    await until(link, up=True)
    await one.put("key", b'"again"')
    assert await two.get("key", json.loads) == "again"


@pytest.mark.parametrize("row", [b"{", b'{"another": "version"}', b"[1]", b"\xff"])
async def test_a_row_of_another_version_is_none_and_said_once(link: RedisLink, row: bytes) -> None:
    scorer = CountingScorer()
    cached = CachedScorer(scorer, SharedRows(link, "q", ttl_s=60), content="w")
    episodes, _ = stores(link)
    await cached.score(REQUEST)
    await episodes.update("e", step)
    for key in await link.client.keys("*"):
        await link.client.set(key, row)
    newer, _ = stores(link)
    other = CachedScorer(scorer, SharedRows(link, "q", ttl_s=60), content="w")
    with structlog.testing.capture_logs() as said:
        assert (await other.score(REQUEST)).computed_tokens > 0
        assert await newer.get("e") is None
        assert (await newer.update("e", step)).steps == 1
    assert link.up
    assert [line["event"] for line in said] == ["redis_row_unreadable"]
    assert (await cached.score(REQUEST)).computed_tokens == 0  # written anew

"""Episodes that servers share through a real Redis, within a budget of bytes."""

import asyncio
from hashlib import sha256

from qguide.server.episodes.redis_store import RedisEpisodeStore
from qguide.server.episodes.state import EpisodeChange, ServedEpisode
from qguide.server.episodes.store import MemoryEpisodeStore
from qguide.server.redis.client import RedisLink
from tests.support.redis_server import RedisServer
from tests.support.redis_users import step, stores, until


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
    size = len(step(None).episode.to_json())
    one, two = (forgetful(link, max_bytes=6 * size) for _ in range(2))
    for episode_id in ("ada/1", "ada/2", "bob/1"):
        await one.update(episode_id, step)
    for number in range(30):
        await (one, two)[number % 2].update(f"eve/{number % 10}", step)
    everybody = ["ada/1", "ada/2", "bob/1", "eve/6", "eve/7", "eve/8", "eve/9"]
    assert await kept(two, *everybody) == [name for name in everybody if name != "eve/6"]
    assert len(await link.client.keys("qguide:episodes:*")) == 6


async def test_the_budget_counts_an_episodes_present_size_once(link: RedisLink) -> None:
    size = len(step(None).episode.to_json())
    store = forgetful(link, max_bytes=3 * size + 20)
    for _ in range(5):
        for episode_id in ("ada/1", "ada/2", "bob/1"):
            await store.update(episode_id, step)
    assert await kept(store, "ada/1", "ada/2", "bob/1") == ["ada/1", "ada/2", "bob/1"]
    large = EpisodeChange(ServedEpisode(id="e", broken="x" * 10 * size))
    await store.update("bob/2", lambda _: large)
    assert await kept(store, "ada/1", "ada/2", "bob/1", "bob/2") == ["ada/1", "ada/2"]


async def test_expired_episodes_are_no_part_of_the_budget(link: RedisLink) -> None:
    size = len(step(None).episode.to_json())
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

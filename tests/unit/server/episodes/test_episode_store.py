"""The bounds of the store in memory."""

from functools import partial

from qguide.server.episodes.state import Episode, EpisodeChange
from qguide.server.episodes.store import MemoryEpisodeStore
from tests.support.clock import Clock


def _kept(episode: Episode, known: Episode | None) -> EpisodeChange:
    return EpisodeChange(known or episode)


async def keep(store: MemoryEpisodeStore, *ids: str) -> None:
    for episode_id in ids:
        episode = Episode(id=episode_id)
        await store.update(episode_id, partial(_kept, episode))


async def test_the_episode_untouched_for_longest_makes_room() -> None:
    size = len(Episode(id="a").to_json())
    store = MemoryEpisodeStore(max_bytes=2 * size, ttl_s=1)
    await keep(store, "a", "b", "a", "c")
    assert await store.get("b") is None
    assert await store.get("a") is not None
    assert store.nbytes == 2 * size


async def test_a_caller_who_opens_many_pushes_out_only_its_own() -> None:
    size = len(Episode(id="ada/1").to_json())
    store = MemoryEpisodeStore(max_bytes=6 * size, ttl_s=1)
    await keep(store, "ada/1", "ada/2", "bob/1")
    await keep(store, *(f"eve/{number % 10}" for number in range(1000)))
    for episode_id in ("ada/1", "ada/2", "bob/1", "eve/9", "eve/8", "eve/7"):
        assert await store.get(episode_id) is not None
    assert await store.get("eve/6") is None
    assert store.nbytes == 6 * size


async def test_callers_share_the_memory_evenly_when_all_want_more() -> None:
    size = len(Episode(id="a/1").to_json())
    store = MemoryEpisodeStore(max_bytes=6 * size, ttl_s=1)
    for number in range(9):
        await keep(store, *(f"{caller}/{number}" for caller in "abc"))
    kept = [f"{caller}/{n}" for caller in "abc" for n in range(9) if await store.get(f"{caller}/{n}")]
    assert kept == ["a/7", "a/8", "b/7", "b/8", "c/7", "c/8"]


async def test_an_episode_larger_than_the_store_is_not_kept() -> None:
    store = MemoryEpisodeStore(max_bytes=10, ttl_s=1)
    await keep(store, "a")
    assert await store.get("a") is None
    assert store.nbytes == 0


async def test_an_episode_untouched_for_too_long_is_gone() -> None:
    clock = Clock()
    store = MemoryEpisodeStore(max_bytes=10**6, ttl_s=10, clock=clock)
    await keep(store, "a", "b")
    clock.now_s += 8
    await keep(store, "a")
    clock.now_s += 7
    assert await store.get("b") is None
    assert await store.get("a") is not None
    clock.now_s += 4
    assert await store.get("a") is None
    assert store.nbytes == 0

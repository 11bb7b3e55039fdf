"""The bounds of the store in memory."""

from functools import partial
from pathlib import Path

from structlog.testing import capture_logs

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


async def test_episodes_that_a_server_leaves_are_taken_up_once_and_grow_old_meanwhile(tmp_path: Path) -> None:
    clock = Clock()
    stopped = MemoryEpisodeStore(max_bytes=10**6, ttl_s=10, clock=clock)
    await keep(stopped, "a")
    clock.now_s += 11
    await stopped.update("b", lambda _: EpisodeChange(Episode(id="b", records=1, record_bytes=4), b'"a\nb"'))
    (folder := tmp_path / "new").mkdir()
    stopped.leave(folder)
    assert [path.stat().st_mode & 0o777 for path in folder.iterdir()] == [0o600]

    begun, other = (MemoryEpisodeStore(max_bytes=10**6, ttl_s=10, clock=clock) for _ in range(2))
    for store in (begun, other):
        store.take_up(folder)
    assert await begun.get("b") == await stopped.get("b")
    assert await begun.records("b") == (b'"a\nb"',)
    assert begun.nbytes == stopped.nbytes
    assert [await store.get("a") for store in (begun, other)] == [None, None]
    assert await other.get("b") is None
    assert not list(folder.iterdir())
    clock.now_s += 9
    assert await begun.get("b") is not None
    clock.now_s += 2
    assert await begun.get("b") is None


async def test_of_an_episode_that_two_servers_left_the_later_change_counts(tmp_path: Path) -> None:
    clock = Clock()
    one, other, begun = (MemoryEpisodeStore(max_bytes=10**6, ttl_s=10, clock=clock) for _ in range(3))
    await keep(one, "a")
    clock.now_s += 1
    await other.update("a", lambda _: EpisodeChange(Episode(id="a", steps=3)))
    for store in (other, one):
        store.leave(tmp_path)
    begun.take_up(tmp_path)
    assert await begun.get("a") == await other.get("a")
    assert begun.nbytes == other.nbytes


async def test_what_an_earlier_version_left_is_told_and_ends_no_start(tmp_path: Path) -> None:
    (tmp_path / "x.open").write_text('{"place": "a"}\n')
    store = MemoryEpisodeStore(max_bytes=10**6, ttl_s=10)
    with capture_logs() as logs:
        store.take_up(tmp_path)
    assert [log["event"] for log in logs] == ["episode_not_taken_up"]
    assert store.nbytes == 0

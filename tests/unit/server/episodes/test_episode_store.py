"""The bounds of the store in memory."""

import os
import sqlite3
from contextlib import closing
from functools import partial
from pathlib import Path

from structlog.testing import capture_logs

from qguide.server.episodes.state import EpisodeChange, ServedEpisode
from qguide.server.episodes.store import MemoryEpisodeStore
from tests.support.clock import Clock


def _kept(episode: ServedEpisode, known: ServedEpisode | None) -> EpisodeChange:
    return EpisodeChange(known or episode)


def _changed(change: EpisodeChange, _: ServedEpisode | None) -> EpisodeChange:
    return change


async def keep(store: MemoryEpisodeStore, *ids: str) -> None:
    for episode_id in ids:
        episode = ServedEpisode(id=episode_id)
        await store.update(episode_id, partial(_kept, episode))


async def test_the_episode_untouched_for_longest_makes_room() -> None:
    size = len(ServedEpisode(id="a").to_json())
    store = MemoryEpisodeStore(max_bytes=2 * size, ttl_s=1)
    await keep(store, "a", "b", "a", "c")
    assert await store.get("b") is None
    assert await store.get("a") is not None
    assert store.nbytes == 2 * size


async def test_a_caller_who_opens_many_pushes_out_only_its_own() -> None:
    size = len(ServedEpisode(id="ada/1").to_json())
    store = MemoryEpisodeStore(max_bytes=6 * size, ttl_s=1)
    await keep(store, "ada/1", "ada/2", "bob/1")
    await keep(store, *(f"eve/{number % 10}" for number in range(1000)))
    for episode_id in ("ada/1", "ada/2", "bob/1", "eve/9", "eve/8", "eve/7"):
        assert await store.get(episode_id) is not None
    assert await store.get("eve/6") is None
    assert store.nbytes == 6 * size


async def test_callers_share_the_memory_evenly_when_all_want_more() -> None:
    size = len(ServedEpisode(id="a/1").to_json())
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


def stores(clock: Clock, number: int) -> list[MemoryEpisodeStore]:
    return [MemoryEpisodeStore(max_bytes=10**6, ttl_s=10, clock=clock) for _ in range(number)]


def step(episode_id: str, number: int) -> EpisodeChange:
    records = tuple(f'"{episode_id}\n{at}"'.encode() for at in range(number))
    size = sum(map(len, records))
    return EpisodeChange(ServedEpisode(id=episode_id, steps=number, records=number, record_bytes=size), records[-1])


async def test_episodes_that_a_server_leaves_are_taken_up_once_and_grow_old_meanwhile(tmp_path: Path) -> None:
    clock = Clock()
    stopped, begun, other, last = stores(clock, 4)
    folder = tmp_path / "new"
    assert stopped.take_up(folder) == []
    await keep(stopped, "a")
    clock.now_s += 11
    for number in (1, 2):
        await stopped.update("b", partial(_changed, step("b", number)))
    assert {path.stat().st_mode & 0o777 for path in folder.iterdir()} == {0o600}
    stopped.close()

    assert [place for place, _ in begun.take_up(folder)] == ["b"]
    assert other.take_up(folder) == []
    assert await begun.get("b") == await stopped.get("b")
    assert await begun.records("b") == (b'"b\n0"', b'"b\n1"')
    assert begun.nbytes == stopped.nbytes
    clock.now_s += 9
    assert await begun.get("b") is not None
    clock.now_s += 2
    assert await begun.get("b") is None
    begun.close()
    assert last.take_up(folder) == []
    for store in (other, last):
        store.close()
    assert len(list(folder.glob("*.open*"))) == 2  # empty, until a start removes them


async def test_what_a_living_server_has_is_left_to_it(tmp_path: Path) -> None:
    living, begun, later = stores(Clock(), 3)
    living.take_up(tmp_path)
    await living.update("a", lambda _: step("a", 1))
    assert begun.take_up(tmp_path) == []
    await living.update("a", lambda _: step("a", 2))
    living.close()
    assert [(place, episode.steps) for place, episode in later.take_up(tmp_path)] == [("a", 2)]
    assert await later.records("a") == await living.records("a")
    for store in (begun, later):
        store.close()


async def test_of_an_episode_that_two_servers_left_the_later_change_counts(tmp_path: Path) -> None:
    clock = Clock()
    one, other, begun = stores(clock, 3)
    for store in (one, other):
        store.take_up(tmp_path)
    await keep(one, "a")
    clock.now_s += 1
    await other.update("a", lambda _: step("a", 3))
    for store in (other, one):
        store.close()
    begun.take_up(tmp_path)
    assert await begun.get("a") == await other.get("a")
    assert begun.nbytes == other.nbytes
    begun.close()


async def test_an_episode_that_is_recorded_or_dropped_leaves_no_text(tmp_path: Path) -> None:
    store = MemoryEpisodeStore(max_bytes=1_000, ttl_s=10)
    store.take_up(tmp_path)
    for place in ("recorded", "dropped"):
        await store.update(place, partial(_changed, step(place, 1)))
    await store.update("recorded", lambda known: EpisodeChange(known.written() if known else ServedEpisode(id="")))
    await keep(store, *map(str, range(100)))
    store.close()
    [path] = tmp_path.glob("*.open")
    assert b"\\n0" not in (left := path.read_bytes())
    assert b'"id":"99"' in left


async def test_what_cannot_be_read_is_told_and_ends_no_start(tmp_path: Path) -> None:
    clock = Clock()
    (tmp_path / "x.open").write_text("no database")
    stopped, begun, later, redacting = stores(clock, 4)
    with capture_logs() as logs:
        stopped.take_up(tmp_path)
    assert [log["event"] for log in logs] == ["episodes_not_taken_up"]
    await keep(stopped, "a")
    stopped.close()
    [path] = tmp_path.glob("*.open")
    with closing(sqlite3.connect(path)) as file, file:
        file.execute("UPDATE episodes SET state = '{}'")  # of another version
    with capture_logs() as logs:
        assert begun.take_up(tmp_path) == []
    assert [log["event"] for log in logs] == ["episode_not_taken_up"]
    begun.close()

    aside = {aside.name: aside for aside in tmp_path.glob("*.unreadable*")}
    assert aside.keys() == {"x.unreadable", f"{path.stem}.unreadable"}
    with closing(sqlite3.connect(aside.pop(f"{path.stem}.unreadable"))) as file:
        assert file.execute("SELECT place FROM episodes").fetchall() == [("a",)]
    for old in aside.values():
        os.utime(old, (0, 0))
    later.take_up(tmp_path)
    later.close()
    assert [kept.name for kept in tmp_path.glob("*.unreadable*")] == [f"{path.stem}.unreadable"]
    redacting.take_up(tmp_path, keeps=False)
    assert not [*tmp_path.glob("*.open*"), *tmp_path.glob("*.unreadable*")]


async def test_of_what_many_servers_left_the_newest_is_kept_as_the_memory_allows(tmp_path: Path) -> None:
    clock = Clock()
    *left, begun, last = stores(clock, 5)
    for store in left:
        store.take_up(tmp_path)
    for number in range(9):
        await keep(left[number % 3], str(number))
        clock.now_s += 1
    for store in left:
        store.close()
    begun.max_bytes = last.max_bytes = 4 * len(ServedEpisode(id="0").to_json())
    for store in (begun, last):
        assert [place for place, _ in store.take_up(tmp_path)] == ["5", "6", "7", "8"]
        store.close()


async def test_an_expired_episode_takes_no_room_from_others_at_a_start(tmp_path: Path) -> None:
    stopped, begun = stores(Clock(), 2)
    stopped.take_up(tmp_path)
    await keep(stopped, "ada/1", "eve/1", "eve/2")
    stopped.close()
    [path] = tmp_path.glob("*.open")
    with closing(sqlite3.connect(path)) as file, file:
        file.execute("UPDATE episodes SET at = at - 11 WHERE place = 'ada/1'")
    begun.max_bytes = stopped.nbytes - len(ServedEpisode(id="ada/1").to_json())
    assert [place for place, _ in begun.take_up(tmp_path)] == ["eve/1", "eve/2"]
    begun.close()

"""Recording of episodes when a write fails, is cut off, or happens twice at once."""

import asyncio
import errno
import json
import os
import stat
import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from threading import Event
from typing import Any

import pytest
from pydantic import BaseModel
from structlog.testing import capture_logs

from qguide.qnet.errors import EpisodeClosedError
from qguide.qnet.types import Message
from qguide.server.episodes.recorder import EpisodeRecorder, RotatedFile
from qguide.server.episodes.redaction import RedactionProcesses
from qguide.server.episodes.redis_store import RedisEpisodeStore
from qguide.server.episodes.service import Closed, Episodes, build_recorder
from qguide.server.episodes.state import Offer, Outcome, ServedEpisode
from qguide.server.episodes.store import MemoryEpisodeStore
from qguide.server.observability.metrics import Metrics
from qguide.server.redis.client import RedisLink
from tests.support.full_disk import files_end_at
from tests.support.redis_server import RedisServer, require_redis
from tests.unit.server.conftest import FAKES

LARGE = "x" * 2_000_000
"""More than pytest writes into any file of its own while a limit holds."""


class Text(BaseModel):
    """A row."""

    text: str


class SlowRedactor(RedactionProcesses):
    """Waits at a gate."""

    def __init__(self) -> None:
        self.entered, self.gate = asyncio.Event(), asyncio.Event()
        self.calls = 0
        self.closed = False

    async def redact(self, texts: Sequence[str]) -> list[str]:
        """The texts, once the gate is open."""
        self.calls += 1
        self.entered.set()
        await self.gate.wait()
        return list(texts)

    async def close(self) -> None:
        """Note that nobody is waited for any more."""
        self.closed = True


async def all_wait() -> None:
    """Let every task run until it waits; in memory that takes turns of the loop, and no time."""
    for _ in range(100):
        await asyncio.sleep(0)


def recorder_of(folder: Path, redactor: RedactionProcesses | None = None) -> EpisodeRecorder:
    return EpisodeRecorder(folder, max_file_bytes=10**9, max_files=9, redactor=redactor)


def memory() -> MemoryEpisodeStore:
    return MemoryEpisodeStore(max_bytes=10**8, ttl_s=60)


def rows(folder: Path, kind: str) -> list[Any]:
    files = sorted(folder.glob(f"{kind}-*.jsonl"))
    return [json.loads(line) for path in files for line in path.read_text().splitlines()]


async def step(episodes: Episodes, episode_id: str = "e", other: str = "stay") -> None:
    history = (Message("user", "look"),)
    q_values = {"go": 0.5, other: 0.25}
    offer = Offer(at=1, q_values=q_values, chosen="go", q_model="q@0")
    await episodes.end_step(episode_id, history, offer)


def test_half_a_line_is_taken_back(tmp_path: Path) -> None:
    file = RotatedFile(tmp_path, "trees", max_bytes=10**9, max_files=9)
    file.append([Text(text=LARGE)])
    (path,) = tmp_path.iterdir()
    size = path.stat().st_size
    with files_end_at(size + 1_000), pytest.raises(OSError, match=rf"\[Errno {errno.EFBIG}\]"):
        file.append([Text(text=LARGE)])
    assert path.stat().st_size == size
    file.append([Text(text="small")])
    assert [len(row["text"]) for row in rows(tmp_path, "trees")] == [len(LARGE), 5]


@dataclass(frozen=True)
class Disk:
    """A folder on a disk that can be full for a while.

    Attributes:
        observation: makes a tree too large for what a full disk still takes.
    """

    folder: Path
    full: Callable[[], AbstractContextManager[None]]
    observation: str


@pytest.fixture(params=["tmpfs", "file size limit"])
def disk(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Disk]:
    """A real disk where root may mount one, and files that may not grow."""
    (folder := tmp_path / "disk").mkdir()
    if request.param == "file size limit":
        yield Disk(folder, partial(files_end_at, len(LARGE) // 2), LARGE)
        return
    mount = ["mount", "-t", "tmpfs", "-o", "size=512k", "tmpfs", str(folder)]
    try:
        subprocess.run(mount, capture_output=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("no tmpfs can be mounted here; the limit of file sizes stands in for it")
    try:
        yield Disk(folder, partial(filled, folder), "x" * 10_000)  # more than a page's rest
    finally:
        subprocess.run(["umount", str(folder)], check=True)


@contextmanager
def filled(folder: Path) -> Iterator[None]:
    """The rest of the disk is taken by another file."""
    ballast = folder / "ballast"
    with ballast.open("wb", buffering=0) as file, suppress(OSError):
        while True:
            file.write(bytes(4096))
    try:
        yield
    finally:
        ballast.unlink()


async def ended(episodes: Episodes, *names: str, observation: str = "") -> list[bool]:
    """For each episode, whether its caller is told that it is recorded."""
    told = []
    for name in names:
        with suppress(EpisodeClosedError):  # of one that is told again
            await step(episodes, name)
        closed = await episodes.close(name, Outcome(reward=1.0, observation=observation))
        told.append(closed.episode.recorded)
    return told


async def test_a_full_disk_takes_no_recorded_episode_and_leaves_no_file(disk: Disk) -> None:
    recorder = EpisodeRecorder(disk.folder, max_file_bytes=1, max_files=4)
    end = partial(ended, Episodes(memory(), recorder, Metrics()), observation=disk.observation)
    assert await end("a", "b", "c") == [True] * 3
    files = sorted(disk.folder.iterdir())
    with disk.full():
        assert await end(*"defghijk") == [False] * 8
        assert sorted(disk.folder.glob("*.jsonl")) == files
    assert await end("d") == [True]  # told again
    assert [len(rows(disk.folder, kind)) for kind in ("trees", "offers")] == [4, 4]


async def test_a_disk_that_is_full_now_and_then_uses_up_no_files(disk: Disk) -> None:
    recorder = EpisodeRecorder(disk.folder, max_file_bytes=10**9, max_files=2)
    end = partial(ended, episodes := Episodes(memory(), recorder, Metrics()), observation=disk.observation)
    for name in "abcde":
        assert await end(name) == [True]
        with disk.full():
            assert await end(f"{name}-refused") == [False]
    await episodes.settle()
    assert len(list(disk.folder.glob("trees-*"))) == 1


async def test_what_a_full_disk_refused_is_written_once_there_is_room(disk: Disk) -> None:
    told: list[tuple[str, bool]] = []

    async def tell(place: str, episode: ServedEpisode, _: str) -> None:
        told.append((place, episode.recorded))

    store = memory()
    episodes = Episodes(store, recorder_of(disk.folder), metrics := Metrics(), ended=tell)
    end = partial(ended, episodes, observation=disk.observation)
    assert await end("a") == [True]
    with disk.full(), capture_logs() as logs:
        assert await end("b", "c", "gone", "d", "gone, too") == [False] * 5
    assert metrics.registry.get_sample_value("qguide_unrecorded_episodes_total", {"cause": "disk"}) == 5
    told_of = [log for log in logs if log["event"] == "episode_closed" and log["episode_id"] == "b"]
    for expired in ("/gone", "/gone, too"):
        assert store.drop(expired)
    assert await end("e") == [True]
    async with asyncio.timeout(30):
        while len(told) < 10:
            await asyncio.sleep(0.01)
    assert [len(rows(disk.folder, kind)) for kind in ("trees", "offers")] == [5, 5]
    assert sorted(told[-3:]) == [("/b", True), ("/c", True), ("/d", True)]
    assert told_of[0]["recorded_as"] in {row["episode"] for row in rows(disk.folder, "trees")}


async def test_what_a_full_disk_refused_is_written_by_the_next_server(disk: Disk) -> None:
    store, later, heard = memory(), memory(), list[str]()
    store.take_up(disk.folder)
    episodes = Episodes(store, recorder_of(disk.folder), Metrics())
    await step(episodes, "open")
    with disk.full():
        await step(episodes, "open")
        assert await ended(episodes, "a", "b", observation=disk.observation) == [False] * 2
        await episodes.settle()
    store.close()
    told = list[tuple[str, bool]]()

    async def tell(place: str, episode: ServedEpisode, _: str) -> None:
        told.append((place, episode.recorded))

    recorder = recorder_of(disk.folder)
    following = Episodes(later, recorder, Metrics(), ended=tell, heard=lambda place, _: heard.append(place))
    following.go_on(later.take_up(disk.folder))
    assert sorted(heard) == ["/a", "/b", "/open"]
    async with asyncio.timeout(30):
        while len(told) < 2:
            await asyncio.sleep(0.01)
    await following.settle()
    assert sorted(told) == [("/a", True), ("/b", True)]
    assert len(rows(disk.folder, "trees")) == 2
    assert await later.get("/open") == await store.get("/open")
    assert await later.records("/open") == await store.records("/open")
    later.close()


async def test_the_oldest_file_stays_while_its_successor_is_not_whole(tmp_path: Path) -> None:
    recorder = EpisodeRecorder(tmp_path, max_file_bytes=1, max_files=1)
    episodes = Episodes(memory(), recorder, Metrics())
    assert await ended(episodes, "a") == [True]
    before = rows(tmp_path, "trees")
    await step(episodes, "b", LARGE)
    with files_end_at(len(LARGE) // 2):  # the tree is written, the offers are not
        assert await ended(episodes, "b") == [False]
    assert rows(tmp_path, "trees") == before


async def test_episode_files_are_for_their_owner_alone(tmp_path: Path) -> None:
    folder = tmp_path / "new" / "episodes"
    await ended(Episodes(memory(), recorder_of(folder), Metrics()), "a")
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert {stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir()} == {0o600}


async def test_what_the_disk_does_not_confirm_is_not_recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = RotatedFile(tmp_path, "trees", max_bytes=10**6, max_files=2)
    file.append([Text(text="first")])

    def fail(_: int) -> None:
        raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", fail)
        with pytest.raises(OSError, match=rf"\[Errno {errno.EIO}\]"):
            file.append([Text(text="second")])
    file.append([Text(text="third")])
    assert [row["text"] for row in rows(tmp_path, "trees")] == ["first", "third"]


async def test_a_tree_whose_offers_cannot_be_written_is_taken_back(tmp_path: Path) -> None:
    episodes = Episodes(memory(), recorder_of(tmp_path), Metrics())
    for name in "ab":
        await step(episodes, name)
    assert (await episodes.close("a", Outcome(reward=1.0))).not_recorded == ""
    (offers,) = tmp_path.glob("offers-*.jsonl")
    offers.unlink()
    offers.mkdir()  # in the way
    assert "could not be written" in (await episodes.close("b", Outcome(reward=1.0))).not_recorded
    assert len(rows(tmp_path, "trees")) == 1
    offers.rmdir()
    assert (await episodes.close("b", Outcome(reward=1.0))).not_recorded == ""
    assert len(rows(tmp_path, "trees")) == 2
    assert len(rows(tmp_path, "offers")) == 1


async def test_the_server_ends_after_what_it_is_writing(tmp_path: Path) -> None:
    redactor = SlowRedactor()
    episodes = Episodes(memory(), recorder_of(tmp_path, redactor), Metrics())
    await step(episodes)
    gone = asyncio.create_task(episodes.close("e", Outcome(reward=1.0)))
    await redactor.entered.wait()
    gone.cancel()
    settled = asyncio.create_task(episodes.settle(timeout_s=60))
    await all_wait()
    assert (settled.done(), redactor.closed) == (False, False)
    redactor.gate.set()
    await settled
    assert len(rows(tmp_path, "trees")) == 1


async def test_what_is_being_written_when_patience_ends_is_marked_as_recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    entered, gate = Event(), Event()
    write = EpisodeRecorder._write

    def gated(*args: Any) -> None:
        entered.set()
        gate.wait(30)
        write(*args)

    monkeypatch.setattr(EpisodeRecorder, "_write", gated)
    store = memory()
    episodes = Episodes(store, recorder_of(tmp_path), Metrics())
    await step(episodes)
    closing = asyncio.create_task(episodes.close("e", Outcome(reward=1.0)))
    await asyncio.to_thread(entered.wait, 30)
    settled = asyncio.create_task(episodes.settle(timeout_s=0))
    await all_wait()
    assert not settled.done()
    gate.set()
    await asyncio.gather(closing, settled, return_exceptions=True)

    kept = await store.get("/e")
    assert kept is not None
    assert kept.recorded  # else the next server would write it again
    assert len(rows(tmp_path, "trees")) == 1


async def test_a_caller_who_goes_leaves_the_record_whole_and_noted(tmp_path: Path) -> None:
    redactor = SlowRedactor()
    episodes = Episodes(memory(), recorder_of(tmp_path, redactor), Metrics())
    await step(episodes)
    gone = asyncio.create_task(episodes.close("e", Outcome(reward=1.0)))
    await redactor.entered.wait()
    gone.cancel()
    again = asyncio.create_task(episodes.close("e", Outcome(reward=1.0)))
    await all_wait()
    assert redactor.calls == 1  # it waits until the first has ended
    redactor.gate.set()
    assert (await again).episode.recorded
    assert gone.cancelled()
    assert len(rows(tmp_path, "trees")) == 1


async def test_two_servers_that_are_told_at_once_write_once(tmp_path: Path) -> None:
    require_redis()
    redis, redactor = RedisServer(tmp_path), SlowRedactor()
    redis.start()
    try:
        link = RedisLink(redis.url, Metrics(), ping_every_s=60)
        async with link.watched():
            one, two = (
                Episodes(
                    RedisEpisodeStore(link, memory(), max_bytes=10**8, ttl_s=60),
                    recorder_of(tmp_path / "e", redactor),
                    Metrics(),
                )
                for _ in range(2)
            )
            await step(one)
            first = asyncio.create_task(one.close("e", Outcome(reward=1.0)))
            await redactor.entered.wait()
            second = asyncio.create_task(two.close("e", Outcome(reward=1.0)))
            done, _ = await asyncio.wait({second}, timeout=60)
            redactor.gate.set()
            assert done, "the second waits to write, too"
            told: list[Closed] = [await second, await first, await two.close("e", Outcome(reward=1))]
    finally:
        redis.kill()
    assert "another replica is recording it now" in told[0].not_recorded
    assert [closed.episode.recorded for closed in told] == [False, True, True]
    assert len(rows(tmp_path / "e", "trees")) == 1


def test_a_server_that_starts_on_trees_of_version_1_warns_once(tmp_path: Path) -> None:
    settings = FAKES.model_copy(update={"episodes_dir": tmp_path})
    (tmp_path / "trees-1.jsonl").write_text('{"task_id": "t", "version": 2}\n')
    (tmp_path / "trees-2.jsonl").write_text("{cut off")
    with capture_logs() as logs:
        build_recorder(settings)
    assert logs == []
    for number in (3, 4):
        (tmp_path / f"trees-{number}.jsonl").write_text('{"task_id": "t", "version": 1}\n')
    with capture_logs() as logs:
        build_recorder(settings)
    [warning] = logs
    assert (warning["event"], warning["files"]) == ("old_trees_not_read", 2)
    assert f"`qguide convert-records {tmp_path}`" in warning["remedy"]

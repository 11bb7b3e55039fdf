"""What is written of episodes where writing fails, is cut off, or happens twice at once."""

import asyncio
import json
import resource
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from qnet.types import Message
from server.episodes.recorder import EpisodeRecorder, RotatedFile, unredacted
from server.episodes.redis_store import RedisEpisodeStore
from server.episodes.service import Closed, Episodes
from server.episodes.state import Outcome
from server.episodes.store import MemoryEpisodeStore
from server.observability.metrics import Metrics
from server.redis.client import RedisLink
from tests.support.redis_server import RedisServer, require_redis

LARGE = "x" * 2_000_000
"""More than pytest writes into any file of its own while a limit holds."""


class SlowHook:
    """A redaction that waits at a gate."""

    def __init__(self) -> None:
        self.entered, self.gate = threading.Event(), threading.Event()

    def __call__(self, text: str) -> str:
        """The text, once the gate is open."""
        self.entered.set()
        assert self.gate.wait(30)
        return text


def recorder_of(folder: Path, redact: Any = unredacted) -> EpisodeRecorder:
    return EpisodeRecorder(folder, max_file_bytes=10**9, max_files=9, redact=redact)


def memory() -> MemoryEpisodeStore:
    return MemoryEpisodeStore(max_bytes=10**6, ttl_s=60)


def rows(folder: Path, kind: str) -> list[Any]:
    files = sorted(folder.glob(f"{kind}-*.jsonl"))
    return [json.loads(line) for path in files for line in path.read_text().splitlines()]


async def step(episodes: Episodes, episode_id: str = "e") -> None:
    history = (Message("user", "look"),)
    await episodes.end_step(episode_id, history, q_values={"go": 0.5}, chosen="go", q_model="q@0")


@contextmanager
def files_end_at(size: int) -> Iterator[None]:
    """As on a disk that is full: a larger file is written in part, and then no more."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_half_a_line_is_taken_back(tmp_path: Path) -> None:
    file = RotatedFile(tmp_path, "trees", max_bytes=10**9, max_files=9)
    file.append([{"text": LARGE}])
    (path,) = tmp_path.iterdir()
    size = path.stat().st_size
    with files_end_at(size + 1_000), pytest.raises(OSError, match="too large"):
        file.append([{"text": LARGE}])
    assert path.stat().st_size == size
    file.append([{"text": "small"}])
    assert [len(row["text"]) for row in rows(tmp_path, "trees")] == [len(LARGE), 5]


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
    hook = SlowHook()
    episodes = Episodes(memory(), recorder_of(tmp_path, hook), Metrics())
    await step(episodes)
    gone = asyncio.create_task(episodes.close("e", Outcome(reward=1.0)))
    assert await asyncio.to_thread(hook.entered.wait, 30)
    gone.cancel()
    settled = asyncio.create_task(episodes.settled())
    await asyncio.sleep(0.1)
    assert not settled.done()
    hook.gate.set()
    await settled
    assert len(rows(tmp_path, "trees")) == 1


async def test_a_caller_who_goes_leaves_the_record_whole_and_noted(tmp_path: Path) -> None:
    hook = SlowHook()
    episodes = Episodes(memory(), recorder_of(tmp_path, hook), Metrics())
    await step(episodes)
    gone = asyncio.create_task(episodes.close("e", Outcome(reward=1.0)))
    assert await asyncio.to_thread(hook.entered.wait, 30)
    gone.cancel()
    again = asyncio.create_task(episodes.close("e", Outcome(reward=1.0)))
    await asyncio.sleep(0.1)
    assert not again.done()  # it waits until the thread of the first has ended
    hook.gate.set()
    assert (await again).episode.recorded
    assert gone.cancelled()
    assert len(rows(tmp_path, "trees")) == 1


async def test_two_servers_that_are_told_at_once_write_once(tmp_path: Path) -> None:
    require_redis()
    redis, hook = RedisServer(tmp_path), SlowHook()
    redis.start()
    try:
        link = RedisLink(redis.url, Metrics(), ping_every_s=60)
        async with link.watched():
            one, two = (
                Episodes(
                    RedisEpisodeStore(link, memory(), ttl_s=60),
                    recorder_of(tmp_path / "e", hook),
                    Metrics(),
                )
                for _ in range(2)
            )
            await step(one)
            first = asyncio.create_task(one.close("e", Outcome(reward=1.0)))
            assert await asyncio.to_thread(hook.entered.wait, 30)
            second = asyncio.create_task(two.close("e", Outcome(reward=1.0)))
            done, _ = await asyncio.wait({second}, timeout=10)
            hook.gate.set()
            assert done, "the second waits to write, too"
            told: list[Closed] = [
                await second,
                await first,
                await two.close("e", Outcome(reward=1)),
            ]
    finally:
        redis.kill()
    assert "another server is writing it now" in told[0].not_recorded
    assert [closed.episode.recorded for closed in told] == [False, True, True]
    assert len(rows(tmp_path / "e", "trees")) == 1

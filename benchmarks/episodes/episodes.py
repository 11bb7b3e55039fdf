"""Episodes benchmark: what storing a step costs, by the number of steps before it.

An episode is played into each store as a server that records it does: its state is read before a
step, and the step's candidates are added after it. Every step adds as many bytes as the one before,
so the goal is the same cost at each length. No request is parsed and nothing is drawn or scored;
only the history of the request is hashed, which takes longer the longer it is.
"""

import asyncio
import time
import tracemalloc
import uuid
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Annotated, Final, Literal, cast

from pydantic import BaseModel, ConfigDict, Field
from rich.console import Console

from benchmarks.measurement.measure import describe_machine
from benchmarks.measurement.options import BenchOptions, OutputFile, Words
from benchmarks.measurement.records import BenchRun
from benchmarks.measurement.tables import print_table
from qguide.qnet.errors import ConfigError
from qguide.qnet.types import History, Message
from qguide.server.episodes.recorder import EpisodeRecorder
from qguide.server.episodes.redis_store import RedisEpisodeStore
from qguide.server.episodes.service import Episodes
from qguide.server.episodes.state import Offer
from qguide.server.episodes.store import EpisodeStore, MemoryEpisodeStore
from qguide.server.observability.metrics import Metrics
from qguide.server.redis.client import RedisLink

GOAL: Final = 1.5
"""Goal for the bytes of a late step, in those of the earliest one."""

_ROOM: Final = 2**30
_TTL_S: Final = 600.0

Advance = Callable[[str], None]
Store = Literal["memory", "redis"]


class EpisodesBench(BenchOptions):
    """Options of `python -m benchmarks episodes`.

    Attributes:
        output: JSON file.
        steps: numbers of the steps that are measured; from 2.
        samples: number of steps before each of them whose times are taken.
        candidates: number of candidates of a step.
        candidate_bytes: size of a candidate.
        redis_url: Redis to measure as well; its episode expires after ten minutes.
        command: the command line.
    """

    output: OutputFile
    steps: Annotated[tuple[Annotated[int, Field(ge=2, le=2000)], ...], Words] = (10, 100, 500)
    samples: int = Field(default=9, ge=1)
    candidates: int = Field(default=5, ge=1, le=64)
    candidate_bytes: int = Field(default=2000, ge=16)
    redis_url: str = ""
    command: str = ""


class StepCostRow(BaseModel):
    """Cost of one step.

    Attributes:
        step: number of the step.
        cpu_ms: median CPU time of the server's process.
        held_bytes: most memory that the step holds at once.
        redis_bytes: bytes that Redis receives and sends; None without it.
    """

    model_config = ConfigDict(frozen=True)

    store: Store
    step: int
    cpu_ms: float
    held_bytes: int
    redis_bytes: int | None


class EpisodesRun(BenchRun):
    """An episodes benchmark, complete or interrupted."""

    candidates: int
    candidate_bytes: int
    rows: tuple[StepCostRow, ...] = ()

    def growth(self, row: StepCostRow) -> float:
        """Bytes of a step in those of the earliest step of the same store."""
        first = next(one for one in self.rows if one.store == row.store)
        return _bytes(row) / _bytes(first)


def stores_of(config: EpisodesBench) -> tuple[Store, ...]:
    """The stores that are measured."""
    return ("memory", "redis") if config.redis_url else ("memory",)


def episodes_bench(config: EpisodesBench, *, advance: Advance = lambda _: None) -> EpisodesRun:
    """Measure every store; an interrupted run is written with `complete: false`.

    Args:
        advance: called with the name of each store before it.

    Raises:
        ConfigError: Redis does not answer.
    """
    run = EpisodesRun(
        complete=False,
        command=config.command,
        machine=describe_machine(device="cpu", threads=1),
        candidates=config.candidates,
        candidate_bytes=config.candidate_bytes,
    )
    try:
        for store in stores_of(config):
            advance(store)
            rows = asyncio.run(_measure(config, store))
            run = run.model_copy(update={"rows": (*run.rows, *rows)})
        run = run.model_copy(update={"complete": True})
    finally:
        config.output.write_text(run.model_dump_json(indent=1) + "\n")
    return run


def history_at(step: int) -> History:
    """The history at a step, counted from 0; short, because its length is the request's."""
    turns = [Message("user", "task")]
    for number in range(step):
        turns += [Message("assistant", f"a{number}"), Message("user", f"o{number}")]
    return tuple(turns)


def offer_at(step: int, *, candidates: int, candidate_bytes: int) -> Offer:
    """The candidates at a step; those of two steps share no text."""
    texts = [f"{step}:{number} ".ljust(candidate_bytes, "x") for number in range(candidates)]
    return Offer(
        at=2 * step + 1,
        q_values=dict.fromkeys(texts, 0.5),
        chosen=texts[0],
        q_model="bench@1",
        counts=dict.fromkeys(texts, 1),
    )


def _bytes(row: StepCostRow) -> int:
    return row.held_bytes if row.redis_bytes is None else row.redis_bytes


class _Played:
    """An episode that is played into a store, one step at a time."""

    def __init__(self, config: EpisodesBench, episodes: Episodes) -> None:
        self._config = config
        self._episodes = episodes
        self._id = f"bench-{uuid.uuid4().hex}"
        self._step = 0

    async def take_step(self) -> float:
        """Take the next step; returns its CPU time in seconds."""
        history, offer = self._next()
        began_s = time.process_time()
        await self._store(history, offer)
        return time.process_time() - began_s

    async def traced_step(self) -> int:
        """Take the next step; returns the most bytes that it held, without the request's own."""
        history, offer = self._next()
        tracemalloc.start()
        try:
            await self._store(history, offer)
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    def _next(self) -> tuple[History, Offer]:
        size = self._config.candidate_bytes
        offer = offer_at(self._step, candidates=self._config.candidates, candidate_bytes=size)
        self._step += 1
        return history_at(self._step - 1), offer

    async def _store(self, history: History, offer: Offer) -> None:
        await self._episodes.begin_step(self._id)
        await self._episodes.end_step(self._id, history, offer)


async def _measure(config: EpisodesBench, store: Store) -> list[StepCostRow]:
    rows: list[StepCostRow] = []
    async with _link(config, store) as link, _recorder() as recorder:
        played = _Played(config, Episodes(_store(link), recorder, Metrics()))
        times: deque[float] = deque(maxlen=config.samples)
        for number in range(1, max(config.steps) + 1):
            if number not in config.steps:
                times.append(await played.take_step())
                continue
            before = await _moved_bytes(link)
            held_bytes = await played.traced_step()
            row = StepCostRow(
                store=store,
                step=number,
                cpu_ms=median(times) * 1e3,
                held_bytes=held_bytes,
                redis_bytes=await _moved_bytes(link) - before if link else None,
            )
            rows.append(row)
    return rows


@asynccontextmanager
async def _link(config: EpisodesBench, store: Store) -> AsyncIterator[RedisLink | None]:
    """The connection to Redis; None for the store in memory."""
    if store == "memory":
        yield None
        return
    link = RedisLink(config.redis_url, Metrics(), ping_every_s=60.0)
    async with link.watched():
        if not link.up:
            raise ConfigError("the Redis of redis_url does not answer; start it, or leave it out")
        yield link


@asynccontextmanager
async def _recorder() -> AsyncIterator[EpisodeRecorder]:
    """A recorder, without which no step is kept; nothing is written."""
    with TemporaryDirectory() as folder:
        yield EpisodeRecorder(Path(folder), max_file_bytes=_ROOM, max_files=1)


def _store(link: RedisLink | None) -> EpisodeStore:
    own = MemoryEpisodeStore(max_bytes=_ROOM, ttl_s=_TTL_S)
    return RedisEpisodeStore(link, own, max_bytes=_ROOM, ttl_s=_TTL_S) if link else own


async def _moved_bytes(link: RedisLink | None) -> int:
    """Bytes that Redis has received and sent so far."""
    if link is None:
        return 0
    stats = await link.client.info("stats")
    return cast(int, stats["total_net_input_bytes"] + stats["total_net_output_bytes"])


def print_episodes(run: EpisodesRun, console: Console) -> None:
    """Print the cost of each step, and whether the goal is kept."""
    title = f"a step of {run.candidates} candidates of {run.candidate_bytes:,} bytes"
    rows = []
    for row in run.rows:
        redis = "" if row.redis_bytes is None else f"{row.redis_bytes / 1e3:,.1f}"
        times, held = f"{row.cpu_ms:.2f}", f"{row.held_bytes / 1e3:,.1f}"
        rows.append((row.store, str(row.step), times, held, redis, f"{run.growth(row):.2f}"))
    names = ("store", "step", "CPU, ms", "held, KB", "Redis, KB", "bytes / first")
    print_table(console, title, names, rows)
    kept = "kept" if all(run.growth(row) <= GOAL for row in run.rows) else "missed"
    console.print(f"bytes of a late step at most {GOAL:g} × the earliest: {kept}", highlight=False)

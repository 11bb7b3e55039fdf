"""Waits of one key for its scores, alone and beside another key in three scenes.

One client scores step after step; beside it another key sends histories of a megabyte, batches of
64 histories, or steps of 64 candidates. What counts is the ratio of the 95th percentiles, which are
measured in one run, on one server.
"""

import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final, get_args

import httpx
from pydantic import Field

from qguide.bench.fairness.crowd import Scene
from qguide.bench.measurement.measure import describe_machine
from qguide.bench.measurement.options import BenchOptions, OutputFile
from qguide.bench.measurement.processes import child
from qguide.bench.measurement.records import FairnessRow, FairnessRun
from qguide.bench.score.http_scorer import free_port, wait_until_ready
from qguide.bench.serve.agents import Agent
from qguide.bench.serve.load import percentiles
from server.access.keys import create_key
from server.upstreams.managed_process import ManagedProcess

ALONE: Final = "alone"
GOAL: Final = 5.0
"""Times the wait alone that the 95th percentile may be in each scene."""

_PATH: Final = "/v1/score"
_TIMEOUT_S: Final = 120.0

Advance = Callable[[str], None]


class FairnessBench(BenchOptions):
    """Options of one run.

    Attributes:
        output: JSON file.
        seconds: of each scene.
        warm_up_s: seconds before those that count, with the other key at work.
        clients: of the other key, each with one request at a time.
        threads: torch's, of the server.
        seed: of what is asked.
        command: as it was typed.
    """

    output: OutputFile
    seconds: float = Field(default=20.0, ge=0.1)
    warm_up_s: float = Field(default=3.0, ge=0)
    clients: int = Field(default=4, ge=1)
    threads: int = Field(default=1, ge=1)
    seed: int = 0
    command: str = ""


def scenes() -> tuple[str, ...]:
    """All that is measured, in order."""
    return (ALONE, *get_args(Scene))


def fairness_bench(config: FairnessBench, *, advance: Advance = lambda _: None) -> FairnessRun:
    """Measure every scene; an interrupted run keeps what it has, and says that it is incomplete.

    Args:
        advance: told what comes next.

    Raises:
        ConfigError: the server does not start, or ends.
    """
    run = FairnessRun(
        complete=False,
        command=config.command,
        machine=describe_machine(device="cpu", threads=config.threads),
        clients=config.clients,
    )
    try:
        with TemporaryDirectory() as name:
            folder = Path(name)
            keys = {who: create_key(folder / "keys.json", who) for who in ("victim", "crowd")}
            with _server(config, folder) as (url, process):
                for scene in scenes():
                    advance(scene)
                    with _crowd(config, scene, url, keys["crowd"], folder):
                        row = _victim(config, scene, url, keys["victim"])
                    run = run.model_copy(update={"rows": (*run.rows, row)})
                    if not process.running:
                        raise process.failure("ended")
        run = run.model_copy(update={"complete": True})
    finally:
        config.output.write_text(run.model_dump_json(indent=1) + "\n")
    return run


def _victim(config: FairnessBench, scene: str, url: str, key: str) -> FairnessRow:
    """One client's waits."""
    agent = Agent(candidates=5, seed=config.seed)
    waits_ms: list[float] = []
    errors = Counter[str]()
    with httpx.Client(
        base_url=url, timeout=_TIMEOUT_S, headers={"Authorization": f"Bearer {key}"}
    ) as http:
        from_s = time.perf_counter() + config.warm_up_s
        while (began_s := time.perf_counter()) < from_s + config.seconds:
            response = http.post(_PATH, json=agent.question(_PATH))
            wait_ms = (time.perf_counter() - began_s) * 1e3
            if response.status_code == 200:
                agent.take(response.json())
            if began_s < from_s:
                continue
            if response.status_code == 200:
                waits_ms.append(wait_ms)
            else:
                errors[str(response.status_code)] += 1
    return FairnessRow(scene=scene, errors=dict(errors), latency_ms=percentiles(waits_ms))


@contextmanager
def _crowd(config: FairnessBench, scene: str, url: str, key: str, folder: Path) -> Iterator[None]:
    """The other key at work as long as the block; nobody where the scene is `ALONE`."""
    if scene == ALONE:
        yield
        return
    module = "qguide.bench.fairness.crowd"
    command = [sys.executable, "-m", module, url, key, scene, str(config.clients)]
    with child("the other key", command, log=folder / f"{scene}.log", environment={}) as process:
        yield
        if not process.running:
            raise process.failure("ended")


@contextmanager
def _server(config: FairnessBench, folder: Path) -> Iterator[tuple[str, ManagedProcess]]:
    """The embedded models behind keys."""
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    command = [sys.executable, "-m", "qguide", "serve", "--host", "127.0.0.1", "--port", str(port)]
    with child(
        "qguide serve",
        command,
        log=folder / "serve.log",
        environment={
            "QGUIDE_THREADS": str(config.threads),
            "QGUIDE_KEYS_FILE": str(folder / "keys.json"),
        },
    ) as process:
        with httpx.Client(base_url=url) as http:
            wait_until_ready(process, http, "/readyz")
        yield url, process

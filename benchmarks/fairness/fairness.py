"""Fairness benchmark: latency of one key's requests, alone and under load in several scenes.

One client scores, reranks or acts step after step, while another key sends histories of one
megabyte, batches of 64 histories, steps of 64 candidates, a megabyte of faults, as many values as a
body may have, or scrapes of the metrics; while connections without a key send chunks of one byte;
or while an upstream answers the other key in such chunks without end. The figures of interest are
the ratio of the 95th percentiles, measured in one run on one server, and the slowest answer of
/healthz.
"""

import json
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Final, Literal, get_args

import httpx
from pydantic import Field
from rich.console import Console

from benchmarks.fairness.crowd import DRIPPING, Scene
from benchmarks.measurement.measure import describe_machine
from benchmarks.measurement.options import BenchOptions, OutputFile, Words
from benchmarks.measurement.processes import child, free_port, wait_until_ready
from benchmarks.measurement.records import FairnessRow, FairnessRun
from benchmarks.measurement.tables import print_table
from benchmarks.serve.agents import Agent
from benchmarks.serve.load import percentiles
from qguide.server.http.keys import create_key
from qguide.server.upstreams.managed_process import ManagedProcess

ALONE: Final = "alone"
GOAL: Final = 5.0
"""Goal for the ratio of the 95th percentiles in each scene to that alone."""
CHEAP_GOAL: Final = 3.0
"""Goal in the scenes whose requests need no device."""
HEALTH_GOAL_MS: Final = 100.0
"""Goal for the slowest answer of /healthz in each of these scenes."""

Endpoint = Literal["score", "rerank", "act"]

_TIMEOUT_S: Final = 120.0
_HEALTH_EVERY_S: Final = 0.05

Advance = Callable[[str], None]


class FairnessBench(BenchOptions):
    """Options of `python -m benchmarks fairness`.

    Attributes:
        output: JSON file.
        seconds: duration of each scene.
        warm_up_s: seconds before each measurement, already under load.
        clients: number of clients of the other key, each with one request at a time.
        threads: number of torch threads of the server.
        endpoints: what the first key asks for: score, rerank, act.
        scenes: loads of the other key, see `benchmarks.fairness.crowd`.
        seed: seed of the requests.
        command: the command line.
    """

    output: OutputFile
    seconds: float = Field(default=20.0, ge=0.1)
    warm_up_s: float = Field(default=3.0, ge=0)
    clients: int = Field(default=4, ge=1)
    threads: int = Field(default=1, ge=1)
    endpoints: Annotated[tuple[Endpoint, ...], Words, Field(min_length=1)] = ("score",)
    scenes: Annotated[tuple[Scene, ...], Words] = get_args(Scene)
    seed: int = 0
    command: str = ""


def measurements(config: FairnessBench) -> list[tuple[Endpoint, str]]:
    """Endpoints and scenes in the order of measurement."""
    return [(endpoint, scene) for endpoint in config.endpoints for scene in (ALONE, *config.scenes)]


def fairness_bench(config: FairnessBench, *, advance: Advance = lambda _: None) -> FairnessRun:
    """Measure every scene; an interrupted run is written with `complete: false`.

    Args:
        advance: called with the name of each measurement before it.

    Raises:
        ConfigError: the server does not start, or exits.
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
            dripping = free_port()
            with _server(config, folder, dripping) as (url, process):
                for endpoint, scene in measurements(config):
                    advance(f"{endpoint}, {scene}")
                    with (
                        _crowd(config, scene, url, keys["crowd"], folder, dripping),
                        _watched_health(config, url) as waits_ms,
                    ):
                        row = _victim(config, endpoint, scene, url, keys["victim"])
                    slowest = max(waits_ms, default=None)
                    row = row.model_copy(update={"slowest_health_ms": slowest})
                    run = run.model_copy(update={"rows": (*run.rows, row)})
                    if not process.running:
                        raise process.failure("exited")
        run = run.model_copy(update={"complete": True})
    finally:
        config.output.write_text(run.model_dump_json(indent=1) + "\n")
    return run


def _victim(config: FairnessBench, endpoint: Endpoint, scene: str, url: str, key: str) -> FairnessRow:
    """Measure the latency of one client."""
    path = f"/v1/{endpoint}"
    agent = Agent(candidates=5, seed=config.seed)
    waits_ms: list[float] = []
    errors = Counter[str]()
    with httpx.Client(base_url=url, timeout=_TIMEOUT_S, headers={"Authorization": f"Bearer {key}"}) as http:
        from_s = time.perf_counter() + config.warm_up_s
        while (began_s := time.perf_counter()) < from_s + config.seconds:
            response = http.post(path, json=agent.question(path))
            wait_ms = (time.perf_counter() - began_s) * 1e3
            if response.status_code == 200:
                agent.take(response.json())
            if began_s < from_s:
                continue
            if response.status_code == 200:
                waits_ms.append(wait_ms)
            else:
                errors[str(response.status_code)] += 1
    return FairnessRow(endpoint=endpoint, scene=scene, errors=dict(errors), latency_ms=percentiles(waits_ms))


@contextmanager
def _watched_health(config: FairnessBench, url: str) -> Iterator[list[float]]:
    """Ask for the server's health again and again during the block; the waits since the warm-up."""
    waits_ms: list[float] = []
    over = threading.Event()

    def watch() -> None:
        with httpx.Client(base_url=url, timeout=_TIMEOUT_S) as http:
            over.wait(config.warm_up_s)
            while not over.wait(_HEALTH_EVERY_S):
                began_s = time.perf_counter()
                http.get("/healthz")
                waits_ms.append((time.perf_counter() - began_s) * 1e3)

    watching = threading.Thread(target=watch, name="health")
    watching.start()
    try:
        yield waits_ms
    finally:
        over.set()
        watching.join()


@contextmanager
def _crowd(config: FairnessBench, scene: str, url: str, key: str, folder: Path, dripping: int) -> Iterator[None]:
    """Run the load of the other key during the block; none in the scene `ALONE`."""
    if scene == ALONE:
        yield
        return
    module = "benchmarks.fairness.crowd"
    command = [sys.executable, "-m", module, url, key, scene, str(config.clients), str(dripping)]
    with child("the other key", command, log=folder / f"{scene}.log", environment={}) as process:
        yield
        if not process.running:
            raise process.failure("exited")


@contextmanager
def _server(config: FairnessBench, folder: Path, dripping: int) -> Iterator[tuple[str, ManagedProcess]]:
    """Run a server with the embedded models, API keys and a dripping upstream during the block."""
    upstream = {"url": f"http://127.0.0.1:{dripping}/v1", "model": "any"}
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
            "QGUIDE_UPSTREAMS": json.dumps({DRIPPING: upstream}),
            "QGUIDE_POLICY": "embedded",
            "QGUIDE_Q_MODELS": json.dumps({"embedded": "embedded"}),
        },
    ) as process:
        with httpx.Client(base_url=url) as http:
            wait_until_ready(process, http, "/readyz")
        yield url, process


def print_fairness(run: FairnessRun, console: Console) -> None:
    """Print the latencies of every scene and their ratio to those of the key alone."""
    title = (
        f"latency of one key, in ms; goals: p95 at most {GOAL:g} × alone, and from faults on "
        f"{CHEAP_GOAL:g} ×, with /healthz within {HEALTH_GOAL_MS:g} ms"
    )
    names = ("endpoint", "scene", "p50", "p95", "p99", "p95 / alone", "slowest health", "errors")
    print_table(console, title, names, [_cells(row, ratios_of(run)) for row in run.rows], left=2)


def ratios_of(run: FairnessRun) -> dict[tuple[str, str], float]:
    """By endpoint and scene, the 95th percentile divided by that of the key alone."""
    p95 = {(row.endpoint, row.scene): row.latency_ms.p95 for row in run.rows if row.latency_ms}
    return {
        (endpoint, scene): value / p95[endpoint, ALONE]
        for (endpoint, scene), value in p95.items()
        if (endpoint, ALONE) in p95
    }


def _cells(row: FairnessRow, ratios: dict[tuple[str, str], float]) -> list[str]:
    times, place = row.latency_ms, (row.endpoint, row.scene)
    shown = (times.p50, times.p95, times.p99) if times else ()
    ratio = f"{ratios[place]:.1f}" if place in ratios else ""
    errors = ", ".join(f"{number} × {status}" for status, number in row.errors.items())
    health = "" if row.slowest_health_ms is None else f"{row.slowest_health_ms:.0f}"
    latencies = [*(f"{ms:.0f}" for ms in shown), *[""] * (3 - len(shown))]
    return [*place, *latencies, ratio, health, errors]

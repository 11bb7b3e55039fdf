"""Load test of a `qguide serve` for each kind of models, or of a running server."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Literal

import httpx
from pydantic import Field

from benchmarks.measurement.measure import describe_machine
from benchmarks.measurement.options import BenchOptions, Counts, OutputFile, Words
from benchmarks.measurement.processes import child, family, free_port, wait_until_ready
from benchmarks.measurement.records import LoadRow, ServeRun
from benchmarks.serve.agents import Agent
from benchmarks.serve.idle_server import idle_server
from benchmarks.serve.load import PATHS, Load, measure_load
from qguide.qnet.errors import ConfigError

THERE = "url"
"""Name in the results for the models of a server that was already running (--url)."""

_PROBE_S = 120.0
_IDLE_S = 3.0
"""Maximum duration of a load on the idle server."""

Advance = Callable[[str], None]


class ServeBench(BenchOptions):
    """Options of `python -m benchmarks serve`.

    Attributes:
        output: JSON file; the plot is written beside it.
        models: "scripted" (fakes, to measure the server alone) or "embedded"; one server for each.
        url: a running server without keys; "" starts the servers.
        clients: numbers of concurrent clients, one load for each.
        seconds: duration of each load.
        warm_up_s: seconds before each measurement.
        candidates: M.
        threads: number of torch threads of a server that is started.
        seed: seed of the clients' requests.
        command: the command line.
    """

    output: OutputFile
    models: Annotated[tuple[Literal["scripted", "embedded"], ...], Words, Field(min_length=1)] = (
        "scripted",
        "embedded",
    )
    url: str = ""
    clients: Annotated[Counts, Field(min_length=1)] = (1, 16, 64)
    seconds: float = Field(default=10.0, ge=0.1)
    warm_up_s: float = Field(default=2.0, ge=0)
    candidates: int = Field(default=5, ge=1)
    threads: int = Field(default=1, ge=1)
    seed: int = 0
    command: str = ""

    @property
    def served(self) -> tuple[str, ...]:
        """Names of the servers to measure, one after the other."""
        return (THERE,) if self.url else self.models


def count_loads(config: ServeBench) -> int:
    """Number of calls of `advance` in a run."""
    return len(config.served) * len(PATHS) * len(config.clients)


def serve_bench(config: ServeBench, *, advance: Advance = lambda _: None) -> ServeRun:
    """Measure every load; an interrupted run is written with `complete: false`.

    Args:
        advance: called with a description before each load.

    Raises:
        ConfigError: a server does not start, exits, or answers the first request with an error.
    """
    run = ServeRun(
        complete=False,
        command=config.command,
        machine=describe_machine(device="cpu", threads=config.threads),
        seed=config.seed,
        candidates=config.candidates,
        warm_up_s=config.warm_up_s,
    )
    try:
        for models in config.served:
            for load, idle in _loads(config, models, advance):
                row = _measured(load, idle)
                run = run.model_copy(update={"rows": (*run.rows, row)})
        run = run.model_copy(update={"complete": True})
    finally:
        config.output.write_text(run.model_dump_json(indent=1) + "\n")
    return run


def _measured(load: Load, idle: Load) -> LoadRow:
    """Measure a load, and the same clients with the idle server."""
    alone = measure_load(idle)
    client_ms = alone.latency_ms.p50 if alone.latency_ms else None
    of_idle = {"client_ms": client_ms, "idle_cpu_ms": alone.server_cpu_ms}
    return measure_load(load).model_copy(update=of_idle)


def _loads(config: ServeBench, models: str, advance: Advance) -> Iterator[tuple[Load, Load]]:
    """Each load of one server while it runs, and the same load of the idle server."""
    with TemporaryDirectory() as name, _server(config, models, Path(name)) as (url, pids):
        for endpoint, path in PATHS.items():
            answer = _probe(url, path, config)
            with idle_server(answer, Path(name)) as (idle_url, idle_pids):
                for clients in config.clients:
                    advance(f"{models}: {path}, {clients} clients")
                    load = Load(
                        url=url,
                        models=models,
                        endpoint=endpoint,
                        clients=clients,
                        seconds=config.seconds,
                        warm_up_s=config.warm_up_s,
                        candidates=config.candidates,
                        seed=config.seed,
                        pids=pids,
                    )
                    idle_s = min(config.seconds, _IDLE_S)
                    yield load, replace(load, url=idle_url, seconds=idle_s, pids=idle_pids)


@contextmanager
def _server(config: ServeBench, models: str, folder: Path) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Yield root URL and process ids of the server; one that is started runs during the block."""
    if config.url:
        yield config.url.rstrip("/"), ()
        return
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    command = [sys.executable, "-m", "qguide", "serve", "--host", "127.0.0.1", "--port", str(port)]
    with child(
        "qguide serve",
        [*command, "--policy", models, "--q-model", models],
        log=folder / "serve.log",
        environment={
            "QGUIDE_THREADS": str(config.threads),
            # All clients are one anonymous caller, whose limit must not affect the measurement.
            "QGUIDE_CONCURRENT_REQUESTS": "0",
        },
    ) as process:
        with httpx.Client(base_url=url) as http:
            wait_until_ready(process, http, "/readyz")
        yield url, tuple(family(process))
        if not process.running:
            raise process.failure("exited")


def _probe(url: str, path: str, config: ServeBench) -> bytes:
    """The server's answer to a first request; refuse a server that answers with an error."""
    question = Agent(candidates=config.candidates, seed=config.seed).question(path)
    try:
        response = httpx.post(url + path, json=question, timeout=_PROBE_S)
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise ConfigError(f"the server cannot be reached ({type(error).__name__}); start it or check --url") from error
    if response.status_code != 200:
        raise ConfigError(
            f"the server answered {path} with {response.status_code}; use a server without keys "
            f"that allows {config.candidates} candidates. Its answer: {response.text[:300]}"
        )
    return response.content

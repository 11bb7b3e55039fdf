"""Rollout benchmark: how much faster many episodes of a hosted policy are at once than in turn.

The upstream is `qguide fake-upstream` in a process of its own, which takes a fixed time for every
answer. What is left of the ideal speed-up is what jobs, client and server need for a request.
"""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from io import StringIO
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

import httpx
from pydantic import Field
from rich.console import Console

from benchmarks.measurement.measure import describe_machine
from benchmarks.measurement.options import BenchOptions, Counts, OutputFile
from benchmarks.measurement.processes import child, free_port, wait_until_ready
from benchmarks.measurement.records import RolloutsRow, RolloutsRun
from benchmarks.measurement.tables import print_table
from qguide.qnet.errors import EnvironmentFailureError
from qguide.training.environments.corridor import CorridorConfig
from qguide.training.jobs.collect import CollectConfig, run_collect
from qguide.training.rollouts.hosted import HostedModel

GOAL: Final = 10.0
"""Goal for the speed-up of 64 episodes at once."""

Advance = Callable[[str], None]


class RolloutsBench(BenchOptions):
    """Options of `python -m benchmarks rollouts`.

    Attributes:
        output: JSON file.
        parallel: numbers of episodes at once; the first is the baseline.
        episodes: number of episodes for each of them.
        steps: number of steps of an episode, each one request.
        delay_s: time that the upstream takes for every answer.
        command: the command line.
    """

    output: OutputFile
    parallel: Counts = (1, 64)
    episodes: int = Field(default=64, ge=1)
    steps: int = Field(default=2, ge=1)
    delay_s: float = Field(default=1.0, ge=0)
    command: str = ""


def rollouts_bench(config: RolloutsBench, *, advance: Advance = lambda _: None) -> RolloutsRun:
    """Measure every number of episodes at once; an interrupted run has `complete: false`.

    Args:
        advance: called with a description before each measurement.

    Raises:
        ConfigError: the fake upstream does not start.
        EnvironmentFailureError: an episode could not be played.
    """
    run = RolloutsRun(
        complete=False,
        command=config.command,
        machine=describe_machine(device="cpu", threads=1),
        episodes=config.episodes,
        steps=config.steps,
        delay_s=config.delay_s,
    )
    try:
        with TemporaryDirectory() as name, _upstream(config.delay_s, Path(name)) as url:
            for parallel in config.parallel:
                advance(f"{parallel} at once")
                row = _measure(config, parallel, url, Path(name) / f"run-{parallel}")
                run = run.model_copy(update={"rows": (*run.rows, row)})
        run = run.model_copy(update={"complete": True})
    finally:
        config.output.write_text(run.model_dump_json(indent=1) + "\n")
    return run


def _measure(config: RolloutsBench, parallel: int, url: str, folder: Path) -> RolloutsRow:
    """Play the episodes once, `parallel` at a time."""
    values = {"url": f"{url}/v1", "model": "fake", "max_in_flight": parallel}
    job = CollectConfig(
        output=folder,
        environment=CorridorConfig(count=config.episodes),
        player="policy",
        policy="upstream:fake",
        upstreams={"fake": HostedModel.model_validate(values)},
        only_won=False,
        max_steps=config.steps,
        parallel=parallel,
    )
    asked = _number_asked(url)
    start_s = time.perf_counter()
    figures = run_collect(job, console=Console(file=StringIO()))
    seconds = time.perf_counter() - start_s
    if figures["failures"]:
        raise EnvironmentFailureError(f"{figures['failures']:.0f} episodes could not be played")
    return RolloutsRow(parallel=parallel, requests=_number_asked(url) - asked, seconds=seconds)


def _number_asked(url: str) -> int:
    number: int = httpx.get(f"{url}/asked").json()["requests"]
    return number


@contextmanager
def _upstream(delay_s: float, folder: Path) -> Iterator[str]:
    """Run the fake upstream during the block; yields its root URL."""
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    command = [sys.executable, "-m", "qguide", "fake-upstream", "--port", str(port)]
    command += ["--delay-s", str(delay_s)]
    with child("the fake upstream", command, log=folder / "fake.log", environment={}) as process:
        with httpx.Client(base_url=url) as http:
            wait_until_ready(process, http, "/health")
        yield url


def print_rollouts(run: RolloutsRun, console: Console) -> None:
    """Print the time of each number of episodes at once, and how much faster it is."""
    title = (
        f"{run.episodes} episodes of {run.steps} steps, {run.delay_s:g} s per answer; goal: {GOAL:g} × with 64 at once"
    )
    rows = (
        (
            str(row.parallel),
            str(row.requests),
            f"{row.seconds:.1f}",
            f"{row.requests / row.seconds:.1f}",
            f"{run.rows[0].seconds / row.seconds:.1f}",
        )
        for row in run.rows
    )
    print_table(console, title, ("at once", "requests", "seconds", "requests/s", "speed-up"), rows, left=0)

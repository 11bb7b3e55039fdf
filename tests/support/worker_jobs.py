"""Small jobs whose environments run in workers, and what kills these."""

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from io import StringIO
from pathlib import Path
from threading import Event, Thread
from typing import Any

import psutil
from rich.console import Console

from qguide.qnet.policies.scripted import ScriptedPolicy
from qguide.training.jobs.explore import ExploreConfig, run_explore
from qguide.training.jobs.pairs import StoredGroups
from qguide.training.workers.config import Workers

REPLIES = [f"Action: {a}" for a in ("go right", "take key", "go left", "open door", "look")]
POLICY = ScriptedPolicy(REPLIES)
HERE = Workers()
SUPPORT = "tests.support.worker_environments"


def explore(output: Path, *, environment: Any, workers: Workers = HERE) -> ExploreConfig:
    """A small exploration in workers."""
    return ExploreConfig.model_validate(
        {
            "output": output,
            "environment": environment,
            "exploration": {"max_steps": 4, "max_draws": 4, "depth": 2},
            "parallel": 16,
            "workers": workers,
        }
    )


def lines(output: Path, name: str = "rows.jsonl") -> list[str]:
    """Sorted lines of a file of a run."""
    path = output / name
    return sorted(path.read_text().splitlines()) if path.exists() else []


def run(config: ExploreConfig) -> list[str]:
    """Explore with the scripted policy; returns the sorted rows."""
    run_explore(config, policy=POLICY, console=Console(file=StringIO()))
    return lines(config.output)


def count_deaths(folder: Path, deaths: int, row: StoredGroups) -> int:
    """The row's number, after so many of the processes that were asked for the first have died."""
    if row.number == 1 and len(list(folder.iterdir())) < deaths:
        (folder / str(os.getpid())).touch()
        os._exit(1)
    return row.number


def worker_processes(actor: str = "HostActor") -> list[psutil.Process]:
    """Processes of workers of either executor, below this one; of Ray's with this class."""
    found = []
    for child in psutil.Process().children(recursive=True):
        try:
            line = " ".join(child.cmdline())
        except psutil.Error:
            continue
        if "qguide.training.processes.worker" in line or actor in line:
            found.append(child)
    return found


@contextmanager
def killing(rows: Path, at: list[int]) -> Iterator[list[int]]:
    """Kill a worker each time that the rows have reached one of these numbers."""
    over, killed = Event(), list[int]()

    def watch() -> None:
        for number in at:
            while not over.is_set() and (not rows.exists() or rows.read_bytes().count(b"\n") < number):
                time.sleep(0.01)
            for victim in worker_processes()[:1]:
                victim.kill()
                killed.append(victim.pid)

    thread = Thread(target=watch)
    thread.start()
    try:
        yield killed
    finally:
        over.set()
        thread.join()

"""Rows benchmark: time and memory of the jobs that read rows, by the number of rows.

A corpus is written as the server writes episodes: one path per row, several rows of a task, far
apart in the file. Each job is a process of its own, so its peak of memory and its CPU time are the
system's figures. The goal is a peak that hardly grows with the number of rows.
"""

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from threading import Event, Thread
from typing import Annotated, Final, Literal

import psutil
from pydantic import BaseModel, ConfigDict, Field
from rich.console import Console

from benchmarks.measurement.measure import describe_machine
from benchmarks.measurement.options import BenchOptions, OutputFile, Words
from benchmarks.measurement.records import BenchRun
from benchmarks.measurement.tables import print_table
from qguide.qnet.errors import ConfigError
from qguide.qnet.records import TreeRow
from qguide.training.data.row_files import ROWS
from qguide.training.data.runs import JsonlWriter

GOAL_MIB: Final = 500
"""Goal for the peak of memory."""
_AT_ONCE: Final = 1000

MeasuredJob = Literal["import", "label", "pairs", "groups", "write", "lines"]
Advance = Callable[[str], None]


class RowsBench(BenchOptions):
    """Options of `python -m benchmarks rows`.

    Attributes:
        output: JSON file.
        rows: numbers of rows of the corpora.
        jobs: of import, label, pairs of trees, pairs of decision groups, and of writing alone: rows as jobs that play
            write them, each flushed, and the lines that workers have made of rows.
        steps: actions of an episode.
        episodes: rows of each task.
        characters: length of an action's observation.
        ray: tasks of Ray at a time, which is started for each job; 0 measures one process.
        folder: where the corpora are written for the time being; None for the system's folder.
        seed: of the corpora.
        command: the command line.
    """

    output: OutputFile
    rows: Annotated[tuple[Annotated[int, Field(ge=1)], ...], Words] = (10_000, 40_000)
    jobs: Annotated[tuple[MeasuredJob, ...], Words] = ("import", "label", "pairs", "groups", "write", "lines")
    steps: int = Field(default=5, ge=1)
    episodes: int = Field(default=4, ge=1)
    characters: int = Field(default=200, ge=1)
    ray: int = Field(default=0, ge=0)
    folder: Path | None = None
    seed: int = 0
    command: str = ""


class JobRow(BaseModel):
    """Cost of one job over one corpus.

    Attributes:
        mib: size of the corpus.
        cpu_s: of its process; of writing alone without the reading before it.
        peak_mib: the most memory that its process held; 0 of writing alone, which has none of its own.
        wall_s: from its start to its end; of writing alone its CPU time, because the system writes files behind it.
        ray_cpu_s: CPU time of Ray's processes; 0 without them.
        worker_mib: the most memory that one of Ray's workers held, what it read in Ray's shared store included.
    """

    model_config = ConfigDict(frozen=True)

    job: MeasuredJob
    rows: int
    mib: float
    cpu_s: float
    peak_mib: float
    wall_s: float = 0.0
    ray_cpu_s: float = 0.0
    worker_mib: float = 0.0

    @property
    def cpu_s_per_1000(self) -> float:
        """CPU time of a thousand rows in the job's process."""
        return 1000 * self.cpu_s / self.rows


class RowsRun(BenchRun):
    """A rows benchmark, complete or interrupted."""

    jobs: tuple[JobRow, ...] = ()


def rows_bench(config: RowsBench, *, advance: Advance = lambda _: None) -> RowsRun:
    """Measure every job over every corpus; an interrupted run is written with `complete: false`."""
    run = RowsRun(complete=False, command=config.command, machine=describe_machine(device="cpu", threads=1))
    try:
        for rows in config.rows:
            with TemporaryDirectory(dir=config.folder) as folder:
                for job in config.jobs:
                    advance(f"{job}, {rows:,} rows")
                    run = run.model_copy(update={"jobs": (*run.jobs, _measured(config, job, rows, Path(folder)))})
        run = run.model_copy(update={"complete": True})
    finally:
        config.output.write_text(run.model_dump_json(indent=1) + "\n")
    return run


def _measured(config: RowsBench, job: MeasuredJob, rows: int, folder: Path) -> JobRow:
    lines = {"import": messages_lines, "groups": group_lines}.get(job, tree_lines)
    corpus = folder / lines.__name__ / "rows.jsonl"
    if not corpus.exists():
        corpus.parent.mkdir()
        with corpus.open("w") as file:
            file.writelines(lines(config, rows))
    if job in ("write", "lines"):
        cpu_s = writing_s(corpus, folder / job, as_lines=job == "lines")
        return JobRow(job=job, rows=rows, mib=corpus.stat().st_size / 2**20, cpu_s=cpu_s, peak_mib=0.0, wall_s=cpu_s)
    arguments = {
        "import": ["import", str(corpus), "--output", str(folder / job)],
        "label": ["label", "--set", f"trees=['{corpus.parent}']"],
        "pairs": ["pairs", "--set", f"trees=['{corpus.parent}']"],
        "groups": ["pairs", "--set", f"groups=['{corpus.parent}']"],
    }[job]
    if job != "import":
        arguments += ["--set", f"output={folder / job}"]
    if config.ray:
        arguments += ["--set", "workers.executor=ray", "--set", f"workers.count={config.ray}"]
    started = time.monotonic()
    with watching_ray() as of_ray:
        cpu_s, peak_mib = process_cost([sys.executable, "-m", "qguide", *arguments])
    return JobRow(
        job=job,
        rows=rows,
        mib=corpus.stat().st_size / 2**20,
        cpu_s=cpu_s,
        peak_mib=peak_mib,
        wall_s=time.monotonic() - started,
        ray_cpu_s=sum(cpu_s for cpu_s, _ in of_ray.values()),
        worker_mib=max((mib for _, mib in of_ray.values()), default=0.0),
    )


def writing_s(corpus: Path, folder: Path, *, as_lines: bool) -> float:
    """CPU seconds in which a job's writer appends the rows of a corpus.

    Args:
        as_lines: they are lines already, and only the whole file counts; otherwise each is made JSON and flushed.
    """
    used = 0.0
    with corpus.open("rb") as read, JsonlWriter(folder / ROWS, flushes=not as_lines) as writer:
        while lines := list(islice(read, _AT_ONCE)):
            rows = [] if as_lines else list(map(TreeRow.model_validate_json, lines))
            started = time.process_time()
            for row in rows:
                writer.write(row)
            for line in lines if as_lines else ():
                writer.write_lines(line)
            used += time.process_time() - started
    return used


@contextmanager
def watching_ray(every_s: float = 1.0) -> Iterator[dict[int, tuple[float, float]]]:
    """CPU seconds and most MiB of Ray's processes below this one, by process id; of other processes than workers, 0."""
    spec = find_spec("ray")
    of_ray = tuple(spec.submodule_search_locations or ()) if spec else ()
    found = dict[int, tuple[float, float]]()
    over = Event()

    def watch() -> None:
        while not over.wait(every_s):
            for process in psutil.Process().children(recursive=True):
                with suppress(psutil.Error, OSError, ValueError):  # it ended meanwhile
                    words = process.cmdline()
                    is_worker = words[:1] != [] and words[0].startswith("ray::")
                    if is_worker or any(word.startswith(of_ray) for word in words):
                        used = process.cpu_times()
                        mib = _most_mib(process) if is_worker else 0.0
                        found[process.pid] = (used.user + used.system, mib)

    thread = Thread(target=watch)
    thread.start()
    try:
        yield found
    finally:
        over.set()
        thread.join()


def _most_mib(process: psutil.Process) -> float:
    """The most memory that a process held; that of now where the system does not say."""
    status = Path(f"/proc/{process.pid}/status")
    if not status.exists():
        return float(process.memory_info().rss) / 2**20
    [kib] = [line.split()[1] for line in status.read_text().splitlines() if line.startswith("VmHWM")]
    return int(kib) / 1024


_WATCH: Final = """
import resource, subprocess, sys
status = subprocess.call(sys.argv[1:], stdout=subprocess.DEVNULL)
used = resource.getrusage(resource.RUSAGE_CHILDREN)
print(used.ru_utime + used.ru_stime, used.ru_maxrss)
sys.exit(status)
"""


def process_cost(command: list[str]) -> tuple[float, float]:
    """CPU seconds of a command, and the most MiB of memory that its process held.

    A small process starts it: Linux counts the memory of the one that starts a command, too.

    Raises:
        ConfigError: it failed.
    """
    watched = [sys.executable, "-S", "-c", _WATCH, *command]
    ended = subprocess.run(watched, stdout=subprocess.PIPE, text=True, check=False)
    if ended.returncode:
        raise ConfigError(f"{' '.join(command)} failed; its message is above")
    cpu_s, peak = ended.stdout.split()
    unit = 1 if sys.platform == "darwin" else 1024
    return float(cpu_s), int(peak) * unit / 2**20


def _episodes(config: RowsBench, rows: int) -> Iterator[tuple[str, list[tuple[str, str]], float]]:
    """Task, actions with their observations, and reward of each episode."""
    rng = Random(config.seed)
    tasks = -(-rows // config.episodes)
    for number in range(rows):
        said = f"{rng.getrandbits(64):x} ".ljust(config.characters, "abcdefgh "[number % 9])
        turns = [(f"Action: go to {rng.randrange(9)}", said) for _ in range(config.steps)]
        yield f"task/{number % tasks}", turns, float(rng.random() < 0.5)


def tree_lines(config: RowsBench, rows: int) -> Iterator[str]:
    """A tree of one path per line, as the server writes episodes."""
    for task, turns, reward in _episodes(config, rows):
        nodes = [
            _node(depth, depth - 1, depth, turn, reward if depth == len(turns) else 0.0)
            for depth, turn in enumerate(turns, start=1)
        ]
        yield _tree_line(task, nodes)


def group_lines(config: RowsBench, rows: int) -> Iterator[str]:
    """Decision groups of two candidates per step, the first of which was taken."""
    for task, turns, reward in _episodes(config, rows):
        nodes = []
        for depth, (action, said) in enumerate(turns, start=1):
            for other in range(2):
                turn = (f"{action} {other}", said)
                node = _node(2 * depth - 1 + other, max(0, 2 * depth - 3), depth, turn, 0.0)
                won = {"outcome_reward": abs(other - reward), "steps": 1, "terminated": True}
                nodes.append(node | {"taken": not other, "rollouts": [won]})
        yield _tree_line(task, nodes)


def _node(number: int, parent: int, depth: int, turn: tuple[str, str], reward: float) -> dict[str, object]:
    place = {"id": number, "parent": parent, "depth": depth}
    action, said = turn
    return place | {"action": action, "observation": said, "reward": reward, "source": "policy"}


def _tree_line(task: str, nodes: list[dict[str, object]]) -> str:
    row = {"version": 2, "task_id": task, "kind": "find", "environment": "bench", "draws": 1}
    return json.dumps(row | {"first_observation": task, "nodes": nodes}) + "\n"


def messages_lines(config: RowsBench, rows: int) -> Iterator[str]:
    """An episode of messages per line, as `qguide import` reads them."""
    for task, turns, reward in _episodes(config, rows):
        messages = [{"role": "user", "content": task}]
        for action, said in turns:
            messages += [{"role": "assistant", "content": action}, {"role": "user", "content": said}]
        yield json.dumps({"messages": messages, "reward": reward, "task_id": task}) + "\n"


def print_rows(run: RowsRun, console: Console) -> None:
    """Print the cost of each job, and whether the goal is kept."""
    rows = []
    for row in run.jobs:
        of_job = (f"{row.mib:,.0f}", f"{row.rows / row.wall_s:,.0f}", f"{row.cpu_s_per_1000:.3f}")
        of_ray = (f"{row.ray_cpu_s:,.0f}", f"{row.worker_mib:,.0f}") if row.ray_cpu_s else ("", "")
        rows.append((row.job, f"{row.rows:,}", *of_job, f"{row.peak_mib:,.0f}", *of_ray))
    names = ("job", "rows", "MiB", "rows/s", "CPU s per 1,000 rows", "peak MiB", "Ray: CPU s", "a worker: MiB")
    print_table(console, None, names, rows)
    most = max(max(row.peak_mib, row.worker_mib) for row in run.jobs)
    kept = "kept" if most <= GOAL_MIB else "missed"
    console.print(f"the most is {most:,.0f} MiB, goal {GOAL_MIB}: {kept}", highlight=False)

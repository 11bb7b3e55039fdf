"""Read-ahead benchmark: what a cold history adds to a step whose candidates an upstream draws.

Two servers with the same random Q model draw from one fake upstream, which takes a fixed time for
every answer; one of them reads histories ahead. Each step has a new history of numbers. The time
that its candidates take by themselves is that of scoring others after the same history.
"""

import json
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from random import Random
from statistics import median
from tempfile import TemporaryDirectory
from typing import Annotated, Any, Final

import httpx
import torch
from pydantic import BaseModel, ConfigDict, Field
from rich.console import Console

from benchmarks.measurement.measure import describe_machine
from benchmarks.measurement.options import BenchOptions, OutputFile, choice_of
from benchmarks.measurement.processes import child, free_port, wait_until_ready
from benchmarks.measurement.records import BenchRun
from benchmarks.measurement.shapes import SHAPES, build_qnet, spell
from benchmarks.measurement.tables import print_table
from benchmarks.score.exported_model import ExportedModel
from qguide.qnet.errors import ConfigError

GOAL: Final = 1.2
"""Goal for what a cold history that was read ahead adds to a step, in the candidates' own time."""
_TIMEOUT_S: Final = 300.0

Advance = Callable[[str], None]


class ReadAheadBench(BenchOptions):
    """Options of `python -m benchmarks read-ahead`.

    Attributes:
        output: JSON file.
        shape: sizes of the random Q model.
        history_tokens: length of every history.
        candidates: M.
        candidate_tokens: length of every candidate.
        delay_s: time that the upstream takes for every answer.
        repeats: number of steps of each server, after one that is not counted.
        threads: number of torch threads of each server.
        seed: seed of weights and histories.
        command: the command line.
    """

    output: OutputFile
    shape: Annotated[str, choice_of(lambda: tuple(SHAPES))] = "2m"
    history_tokens: int = Field(default=3000, ge=1, le=12_000)
    candidates: int = Field(default=5, ge=2, le=64)
    candidate_tokens: int = Field(default=48, ge=4, le=256)
    delay_s: float = Field(default=0.3, ge=0)
    repeats: int = Field(default=7, ge=1)
    threads: int = Field(default=1, ge=1)
    seed: int = 0
    command: str = ""


class ReadAheadStep(BaseModel):
    """Milliseconds of one step; times include waits for the device.

    Attributes:
        own_ms: scoring of other candidates after the history that was just scored.
        ahead_ms: scoring after the draw, by the server that reads ahead.
        cold_ms: the same by the server that does not.
        ahead_total_ms: the whole step by the server that reads ahead; likewise `cold_total_ms`.
    """

    model_config = ConfigDict(frozen=True)

    own_ms: float
    ahead_ms: float
    cold_ms: float
    ahead_total_ms: float
    cold_total_ms: float


class ReadAheadRun(BenchRun):
    """A read-ahead benchmark, complete or interrupted.

    Attributes:
        differences: largest |Q - Q'| of the two servers in each step.
    """

    shape: str
    history_tokens: int
    candidates: int
    candidate_tokens: int
    delay_s: float
    steps: tuple[ReadAheadStep, ...] = ()
    differences: tuple[float, ...] = ()

    def median(self, name: str) -> float:
        """Median of one time over all steps."""
        times: list[float] = [getattr(step, name) for step in self.steps]
        return median(times)

    @property
    def ratio(self) -> float:
        """Time that a history adds after it was read ahead, in the candidates' own."""
        return self.median("ahead_ms") / self.median("own_ms")


def read_ahead_bench(config: ReadAheadBench, *, advance: Advance = lambda _: None) -> ReadAheadRun:
    """Measure every step; an interrupted run has `complete: false`.

    Args:
        advance: called with a description before each step.

    Raises:
        ConfigError: a server does not start, or answers with an error.
    """
    run = ReadAheadRun(
        complete=False,
        command=config.command,
        machine=describe_machine(device="cpu", threads=config.threads),
        **config.model_dump(include={"shape", "history_tokens", "candidates", "candidate_tokens", "delay_s"}),
    )
    rng = Random(config.seed)
    try:
        with TemporaryDirectory() as name, _servers(config, rng, Path(name)) as (ahead, cold):
            for number in range(config.repeats + 1):
                advance(f"step {number}" if number else "warm-up")
                step, difference = _measure(config, rng, ahead, cold)
                if number:
                    steps = (*run.steps, step)
                    differences = (*run.differences, difference)
                    run = run.model_copy(update={"steps": steps, "differences": differences})
        run = run.model_copy(update={"complete": True})
    finally:
        config.output.write_text(run.model_dump_json(indent=1) + "\n")
    return run


def _measure(
    config: ReadAheadBench, rng: Random, ahead: httpx.Client, cold: httpx.Client
) -> tuple[ReadAheadStep, float]:
    """One step of both servers, and the largest difference of their Q-values."""
    messages = [{"role": "user", "content": _numbers(config, rng, config.history_tokens)}]
    act = {"messages": messages, "num_candidates": config.candidates, "greedy_candidate": False, "max_tokens": None}
    others = {"messages": messages, "candidates": _replies(config, rng)}
    read, unread = (_post(http, "/v1/act", act) for http in (ahead, cold))
    own = _post(ahead, "/v1/score", others)
    step = ReadAheadStep(
        own_ms=own["timings_ms"]["score"],
        ahead_ms=read["timings_ms"]["score"],
        cold_ms=unread["timings_ms"]["score"],
        ahead_total_ms=read["timings_ms"]["total"],
        cold_total_ms=unread["timings_ms"]["total"],
    )
    both = zip(_q_values(read), _q_values(unread), strict=True)
    return step, max(abs(one - other) for one, other in both)


def _q_values(answer: dict[str, Any]) -> list[float]:
    """The Q-values of an answer, smallest first: the upstream's script goes on between servers."""
    return sorted(candidate["q_value"] for candidate in answer["candidates"])


def _post(http: httpx.Client, path: str, body: dict[str, Any]) -> dict[str, Any]:
    response = http.post(path, json=body)
    if response.status_code != 200:
        raise ConfigError(f"the server answered {path} with {response.status_code}: {response.text[:300]}")
    answer: dict[str, Any] = response.json()
    return answer


@contextmanager
def _servers(config: ReadAheadBench, rng: Random, folder: Path) -> Iterator[tuple[httpx.Client, httpx.Client]]:
    """Clients of a server that reads ahead, and of one that does not."""
    loaded = build_qnet("bench", SHAPES[config.shape], seed=config.seed, dtype=torch.float32, device="cpu")
    model = ExportedModel(
        loaded, folder, vllm_python="", dtype="float32", device="cpu", threads=config.threads, longest=0, cache_bytes=0
    )
    upstream = ["fake-upstream", "--delay-s", str(config.delay_s)]
    for reply in _replies(config, rng):
        upstream += ["--reply", reply]
    with ExitStack() as stack:
        fake = stack.enter_context(_process("the fake upstream", upstream, folder, {}, "/health"))
        environment = {
            "QGUIDE_POLICY": "fake",
            "QGUIDE_UPSTREAMS": json.dumps({"fake": {"url": f"{fake}/v1", "model": "fake"}}),
            "QGUIDE_Q_MODELS": json.dumps({"bench": str(model.checkpoint)}),
            "QGUIDE_THREADS": str(config.threads),
        }
        clients = []
        for ahead in ("true", "false"):
            switched = {**environment, "QGUIDE_READ_AHEAD": ahead}
            name = f"the server with QGUIDE_READ_AHEAD={ahead}"
            url = stack.enter_context(_process(name, ["serve"], folder, switched, "/readyz"))
            client = httpx.Client(base_url=url, timeout=_TIMEOUT_S)
            clients.append(stack.enter_context(client))
        yield clients[0], clients[1]


@contextmanager
def _process(
    name: str, arguments: Sequence[str], folder: Path, environment: dict[str, str], ready: str
) -> Iterator[str]:
    """The root URL of a `qguide` command that serves, once it is ready."""
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    command = [sys.executable, "-m", "qguide", *arguments, "--port", str(port)]
    log = folder / f"{port}.log"
    with child(name, command, log=log, environment=environment) as process:
        with httpx.Client(base_url=url) as http:
            wait_until_ready(process, http, ready)
        yield url


def _replies(config: ReadAheadBench, rng: Random) -> list[str]:
    """As many different candidates as a step has."""
    return [_numbers(config, rng, config.candidate_tokens) for _ in range(config.candidates)]


def _numbers(config: ReadAheadBench, rng: Random, count: int) -> str:
    """A text of random tokens."""
    return spell(rng.choices(range(1, SHAPES[config.shape].vocabulary), k=count))


def print_read_ahead(run: ReadAheadRun, console: Console) -> None:
    """Print the medians of both servers, and whether the goal is kept."""
    title = (
        f"{run.history_tokens:,} new tokens, {run.candidates} candidates of "
        f"{run.candidate_tokens}, an upstream of {run.delay_s * 1e3:g} ms; medians in ms"
    )
    rows = [("candidates alone", f"{run.median('own_ms'):,.1f}", "")]
    for label, name in (("read ahead", "ahead"), ("not read ahead", "cold")):
        ms, total_ms = run.median(f"{name}_ms"), run.median(f"{name}_total_ms")
        rows.append((label, f"{ms:,.1f}", f"{total_ms:,.1f}"))
    print_table(console, title, ("", "scoring", "whole step"), rows)
    kept = "kept" if run.ratio <= GOAL else "missed"
    console.print(
        f"a history that was read ahead adds {run.ratio:.2f} × the candidates' own time, goal "
        f"{GOAL:g}: {kept}; Q differs by {max(run.differences):.1g} at most",
        highlight=False,
    )

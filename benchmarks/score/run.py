"""Run of the scoring benchmark: every implementation at every point, in turns.

Each repetition is a new session. Before its turn, each implementation scores the previous step
without being measured, which fills its cache; then the step is measured. The order rotates from
repetition to repetition, so that none always follows the same neighbour.
"""

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import cast

import torch

from benchmarks.measurement.measure import (
    TOLERANCES,
    MatrixProduct,
    Timing,
    clock_here,
    describe_machine,
    largest_difference,
    least_flops,
    timed,
)
from benchmarks.measurement.names import OF_MANY_SESSIONS, OURS, REFERENCE, Name
from benchmarks.measurement.options import DTYPES, Dtype
from benchmarks.measurement.records import ContestantRow, ModelRow, PointRow, Run, Samples, SessionsRow
from benchmarks.measurement.shapes import SHAPES, Shape, build_qnet
from benchmarks.measurement.steps import OBSERVATION_TOKENS, Point, draw_step
from benchmarks.score.baselines import Baseline, ManySessions, Ours, build_baselines
from benchmarks.score.config import ScoreBench
from benchmarks.score.exported_model import ExportedModel
from benchmarks.score.remote import open_remote
from qguide.qnet.models.checkpoint import LoadedQNet

_CACHE_BYTES = 4 * 1024**3
_GROWTH_COLUMNS = 256
_BLOCK_COLUMNS = 128
_LEAST_REMOTE_BYTES = 1024**3

Advance = Callable[[str], None]


def score_bench(config: ScoreBench, *, advance: Advance = lambda _: None) -> Run:
    """Measure everything; an interrupted run is written with `complete: false`.

    Args:
        advance: called with a description before each of the `count_turns` turns.

    Raises:
        KeyboardInterrupt: after the results so far have been written.
    """
    run = _new_run(config)
    try:
        with _threads(config.threads):
            for measured in _measure(config, run, advance):
                run = measured
        run = run.model_copy(update={"complete": True})
    finally:
        _write(run, config.output)
    return run


def count_turns(config: ScoreBench) -> int:
    """Number of calls of `advance` in a run."""
    rounds = config.repetitions + config.warm_ups
    per_model = len(config.points) * len(config.names)
    per_model += len(config.sessions) * len(_of_many_sessions(config))
    return len(config.params) * rounds * per_model


def _measure(config: ScoreBench, run: Run, advance: Advance) -> Iterator[Run]:
    """Yield the run so far after each model, point and number of sessions."""
    for name in config.params:
        shape = SHAPES[name]
        loaded = build_qnet(name, shape, seed=config.seed, dtype=DTYPES[config.dtype], device=config.device)
        run = run.model_copy(update={"models": (*run.models, _model_row(name, shape, loaded))})
        yield run
        with _baselines(config, name, loaded) as baselines:
            for point in config.points:
                for row in _measure_point(config, name, point, baselines, advance):
                    done = tuple(p for p in run.points if (p.model, p.label) != (name, str(point)))
                    run = run.model_copy(update={"points": (*done, row)})
                    yield run
            for sessions in config.sessions:
                rows = _measure_sessions(config, name, loaded, baselines, sessions, advance)
                run = run.model_copy(update={"sessions": (*run.sessions, *rows)})
                yield run


@contextmanager
def _baselines(config: ScoreBench, model: str, loaded: LoadedQNet) -> Iterator[dict[Name, Baseline]]:
    """All implementations, in the order of the command line."""
    with ExitStack() as stack:
        found = build_baselines(config.local, loaded, cache_bytes=_CACHE_BYTES)
        folder = Path(stack.enter_context(TemporaryDirectory(prefix="qguide-bench-")))
        exported = ExportedModel(
            loaded,
            folder,
            vllm_python=config.vllm_python,
            dtype=config.dtype,
            device=config.device,
            threads=config.threads,
            longest=max(point.longest for point in config.points),
            cache_bytes=_remote_cache_bytes(config, SHAPES[model]),
        )
        for name in config.remote:
            found[name] = stack.enter_context(open_remote(name, exported))
        yield {name: found[name] for name in config.names}


def _measure_point(
    config: ScoreBench, model: str, point: Point, baselines: dict[Name, Baseline], advance: Advance
) -> Iterator[PointRow]:
    """Yield the point's row after each measured repetition."""
    product = MatrixProduct(dtype=DTYPES[config.dtype], device=config.device)
    tally = _Tally(list(baselines), tolerance=TOLERANCES[config.dtype])
    for repetition in range(-config.warm_ups, config.repetitions):
        rng = Random(f"{config.seed} {point} {repetition}")
        drawn = replace(point, history=point.history - rng.randint(0, config.fewer)) if config.fewer else point
        step = draw_step(drawn, vocabulary=SHAPES[model].vocabulary, rng=rng)
        found: dict[Name, list[float]] = {}
        _, speed = timed(product, clock=partial(clock_here, config.device))
        timings = {}
        for name in _in_turns(list(baselines), repetition):
            advance(f"{model} {point} {name}")
            baselines[name].prepare(step)
            call = partial(baselines[name].score, step)
            found[name], timings[name] = timed(call, clock=baselines[name].clock)
        tally.compare(found)
        if repetition >= 0:
            tally.add(timings, gemm=speed)
            yield PointRow(
                model=model,
                **_size(point),
                new_tokens=point.new_tokens,
                floor_flops=least_flops(SHAPES[model], point),
                gemm_flops=product.flops,
                gemm=tally.gemm,
                contestants=tally.rows(),
            )


class _Tally:
    """Samples and Q differences of each implementation at one point."""

    def __init__(self, names: list[Name], *, tolerance: float) -> None:
        self.gemm = Samples()
        self._samples = dict.fromkeys(names, Samples())
        self._differences = dict.fromkeys(names, 0.0)
        self._tolerance = tolerance
        self._scale = 1.0

    def compare(self, found: dict[Name, list[float]]) -> None:
        """Compare the Q of all implementations with the reference's."""
        reference = found[REFERENCE]
        self._scale = max(self._scale, *map(abs, reference))
        for name, q_values in found.items():
            self._differences[name] = max(self._differences[name], largest_difference(q_values, reference))

    def add(self, timings: dict[Name, Timing], *, gemm: Timing) -> None:
        """Add the times of a repetition."""
        self.gemm = self.gemm.and_one_more(**asdict(gemm))
        for name, timing in timings.items():
            self._samples[name] = self._samples[name].and_one_more(**asdict(timing))

    def rows(self) -> tuple[ContestantRow, ...]:
        """Rows of all implementations."""
        limit = self._tolerance * self._scale
        return tuple(
            ContestantRow(
                name=name,
                samples=samples,
                max_q_difference=self._differences[name],
                agrees=self._differences[name] <= limit,
            )
            for name, samples in self._samples.items()
        )


def _measure_sessions(
    config: ScoreBench, model: str, loaded: LoadedQNet, baselines: dict[Name, Baseline], sessions: int, advance: Advance
) -> list[SessionsRow]:
    """Measure steps of concurrent sessions at the first point; one row per implementation."""
    point = config.points[0]
    cache_bytes = _cache_bytes(SHAPES[model], point, sessions, config.dtype)
    players: dict[Name, ManySessions] = {OURS: Ours(loaded, cache_bytes=cache_bytes)}
    for name in _of_many_sessions(config)[1:]:
        players[name] = cast(ManySessions, baselines[name])
    samples = dict.fromkeys(players, Samples())
    for repetition in range(-config.warm_ups, config.repetitions):
        rng = Random(f"{config.seed} {point} {sessions} {repetition}")
        vocabulary = SHAPES[model].vocabulary
        steps = [draw_step(point, vocabulary=vocabulary, rng=rng) for _ in range(sessions)]
        for name in _in_turns(list(players), repetition):
            advance(f"{model} {point} {sessions} sessions {name}")
            for step in steps:
                players[name].prepare(step)
            call = partial(players[name].score_all, steps)
            _, timing = timed(call, clock=players[name].clock)
            if repetition >= 0:
                samples[name] = samples[name].and_one_more(**asdict(timing))
    return [
        SessionsRow(model=model, **_size(point), sessions=sessions, samples=found, name=name)
        for name, found in samples.items()
    ]


def _of_many_sessions(config: ScoreBench) -> list[Name]:
    """The implementations that score many sessions in one call, ours first."""
    return [name for name in OF_MANY_SESSIONS if name in config.names]


def _cache_bytes(shape: Shape, point: Point, sessions: int, dtype: Dtype) -> int:
    """Cache size for exactly these sessions, including the growth of the KV buffers."""
    columns = point.history + point.new_tokens + _GROWTH_COLUMNS
    return sessions * columns * _column_bytes(shape, dtype)


def _remote_cache_bytes(config: ScoreBench, shape: Shape) -> int:
    """Cache size for the largest measurement, with the candidates of two steps in own blocks."""

    def columns(point: Point) -> int:
        return point.longest + 2 * point.candidates * (point.candidate_tokens + _BLOCK_COLUMNS)

    most = max(map(columns, config.points))
    most = max(most, max(config.sessions, default=1) * columns(config.points[0]))
    return max(_LEAST_REMOTE_BYTES, most * _column_bytes(shape, config.dtype))


def _column_bytes(shape: Shape, dtype: Dtype) -> int:
    return 2 * shape.layers * shape.kv_heads * shape.head_size * DTYPES[dtype].itemsize


def _in_turns(names: list[Name], repetition: int) -> list[Name]:
    start = repetition % len(names)
    return names[start:] + names[:start]


def _size(point: Point) -> dict[str, int]:
    return {
        "history": point.history,
        "candidates": point.candidates,
        "candidate_tokens": point.candidate_tokens,
        "alike": point.alike,
    }


def _model_row(name: str, shape: Shape, loaded: LoadedQNet) -> ModelRow:
    parameters = sum(p.numel() for p in loaded.model.parameters())
    return ModelRow(name=name, parameters=parameters, **asdict(shape))


def _new_run(config: ScoreBench) -> Run:
    return Run(
        complete=False,
        command=config.command,
        machine=describe_machine(device=config.device, threads=config.threads),
        dtype=config.dtype,
        seed=config.seed,
        repetitions=config.repetitions,
        warm_ups=config.warm_ups,
        observation_tokens=OBSERVATION_TOKENS,
        tolerance=TOLERANCES[config.dtype],
    )


@contextmanager
def _threads(count: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _write(run: Run, path: Path) -> None:
    """Write the run atomically."""
    partial = path.with_suffix(".json.part")
    partial.write_text(run.model_dump_json(indent=1) + "\n")
    os.replace(partial, path)

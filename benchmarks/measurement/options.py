"""Option types shared by the benchmarks: comma-separated lists, devices and output files."""

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Literal

import torch
from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field

from qguide.qnet.models.loading import embedded_path

Dtype = Literal["bfloat16", "float32"]
DTYPES: dict[Dtype, torch.dtype] = {"bfloat16": torch.bfloat16, "float32": torch.float32}
EMBEDDED = "embedded"
MOST_AT_ONCE = 1024


class BenchOptions(BaseModel):
    """Options of a benchmark, from its command line, `--config` and `--set`."""

    model_config = ConfigDict(frozen=True, extra="forbid")


def _split(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    return list(dict.fromkeys(word.strip() for word in value.split(",") if word.strip()))


Words = BeforeValidator(_split)
"""Splits a string at its commas and removes repeated parts."""

Count = Annotated[int, Field(ge=1, le=MOST_AT_ONCE)]
Counts = Annotated[tuple[Count, ...], Words]


def choice_of(choices: Callable[[], tuple[str, ...]]) -> AfterValidator:
    """Validator for names that are known only at run time."""

    def check(name: str) -> str:
        if name not in choices():
            raise ValueError(f"{name!r} is not one of {', '.join(choices())}")
        return name

    return AfterValidator(check)


def _check_device(name: str) -> str:
    if name == "cpu" or (name.startswith("cuda") and torch.cuda.is_available()):
        return name
    available = "cpu and cuda" if torch.cuda.is_available() else "only cpu"
    raise ValueError(f"{name!r} is not available; this torch supports {available}")


def _check_output(path: Path) -> Path:
    if path.suffix != ".json":
        raise ValueError(f"{path} does not end in .json; the results are JSON, so rename it")
    if not path.parent.is_dir():
        raise ValueError(f"{path}: there is no folder {path.parent}; create it first")
    return path


Device = Annotated[str, AfterValidator(_check_device)]
OutputFile = Annotated[Path, AfterValidator(_check_output)]
"""A JSON file in an existing folder; the plot is written beside it."""


def q_model_folder(name: str) -> Path:
    """Folder of a Q model: the embedded one's, or the given one."""
    return embedded_path("qnet") if name == EMBEDDED else Path(name)

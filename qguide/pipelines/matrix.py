"""Matrices of a pipeline: stages that differ in a seed, a target or a term that is left out.

[matrix.left_out]                    # the first of each list, then the second, …
term = ["outcome", "step"]
weight = ["trajectory", "suffix"]

[stages."without_{term}"]
matrix = "left_out"
job = "train-dpo"
config = "train_dpo_ipr.toml"
set = ["weights.{weight}=0.0", "output=runs/without_{term}"]

Stages of one matrix that stand one after the other are repeated together: all for the first
values, then all for the second. So a training and its evaluation stay beside each other.
"""

import json
import re
from collections.abc import Iterator, Mapping
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from qguide.pipelines.config import StageConfig

Scalar = bool | int | float | str
Matrix = Mapping[str, tuple[Scalar, ...]]

STAGE_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*")
_VARIABLE: Final = re.compile(r"\{(\w+)\}")


def expanded(
    stages: "Mapping[str, StageConfig]", matrices: Mapping[str, Matrix]
) -> "dict[str, StageConfig]":
    """The stages by name, each matrix written out."""
    found: dict[str, StageConfig] = {}
    for matrix, group in groupby(stages.items(), key=lambda item: item[1].matrix):
        members = list(group)
        for values in _rows(matrix, matrices):
            for template, stage in members:
                name = _filled(template, template, values)
                if name in found:
                    raise ValueError(f"two stages are called {name}; use every variable in a name")
                if not STAGE_NAME.fullmatch(name):
                    raise ValueError(f"stage {name!r}: use letters, digits, - and _")
                found[name] = stage if matrix is None else _stage(template, stage, values)
    return found


def _rows(name: str | None, matrices: Mapping[str, Matrix]) -> Iterator[Mapping[str, str]]:
    """The values of a matrix's variables, one row after the other; one empty row without one."""
    if name is None:
        yield {}
        return
    if name not in matrices:
        raise ValueError(f"matrix {name!r} is missing; the file has {_listed(matrices)}")
    matrix = matrices[name]
    counts = {variable: len(values) for variable, values in matrix.items()}
    if len(set(counts.values())) != 1:
        raise ValueError(f"matrix.{name}: give lists of one length, not {counts}")
    for row in zip(*matrix.values(), strict=True):
        yield dict(zip(matrix, map(_text, row), strict=True))


def _text(value: Scalar) -> str:
    """A value as `--set` reads it."""
    return value if isinstance(value, str) else json.dumps(value)


def _stage(name: str, stage: "StageConfig", values: Mapping[str, str]) -> "StageConfig":
    changed = {
        "config": stage.config and Path(_filled(name, str(stage.config), values)),
        "set": tuple(_filled(name, override, values) for override in stage.set),
        "needs": tuple(_filled(name, need, values) for need in stage.needs),
        "matrix": None,
    }
    return stage.model_copy(update=changed)


def _filled(stage: str, text: str, values: Mapping[str, str]) -> str:
    if not values:
        return text

    def value(match: re.Match[str]) -> str:
        if match[1] not in values:
            raise ValueError(f"stage {stage} has {match[0]}; its matrix has {_listed(values)}")
        return values[match[1]]

    return _VARIABLE.sub(value, text)


def _listed(names: Mapping[str, object]) -> str:
    return ", ".join(names) or "none"

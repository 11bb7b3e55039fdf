"""Pipeline files: the stages, each a job with its job file and overrides.

output = "runs/mine/pipeline"        # log files and the summary
slots = 2                            # processes that may run side by side

[stages.expert]
job = "collect"
config = "collect.toml"              # relative to this file

[stages.policy]
job = "sft"
config = "sft.toml"
set = ["optimization.epochs=3"]      # as `--set` of the job

What several stages share is written once, in a table `[values]`, and stands in their fields as
`{name}`; `{output}` is the folder of the pipeline.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain, groupby
from pathlib import Path
from typing import Annotated, Final, Self

from pydantic import Field, model_validator

from qguide.qnet.errors import ConfigError
from qguide.training.configs.job_files import load_config
from qguide.training.options import JobOptions
from qguide.training.shipped_files import shipped_path

Scalar = bool | int | float | str
Matrix = Mapping[str, tuple[Scalar, ...]]

OUTPUT: Final = "output"
STAGE_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*")
_VARIABLE: Final = re.compile(r"\{([A-Za-z_]\w*)\}")


def expanded(config: "PipelineConfig") -> "dict[str, StageConfig]":
    """The stages by name, each matrix written out and each value in its place."""
    shared = {OUTPUT: str(config.output)} | {name: _text(value) for name, value in config.values.items()}
    found: dict[str, StageConfig] = {}
    for matrix, group in groupby(config.stages.items(), key=lambda item: item[1].matrix):
        members = list(group)
        for row in _rows(matrix, config.matrix):
            values = {**shared, **row}
            for template, stage in members:
                name = _filled(template, template, values)
                if name in found:
                    raise ValueError(f"two stages are called {name}; use every variable in a name")
                if not STAGE_NAME.fullmatch(name):
                    raise ValueError(f"stage {name!r}: use letters, digits, - and _")
                found[name] = _stage(template, stage, values)
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
    def value(match: re.Match[str]) -> str:
        if match[1] not in values:
            raise ValueError(f"stage {stage} has {match[0]}; name one of its values: {_listed(values)}")
        return values[match[1]]

    return _VARIABLE.sub(value, text)


def _listed(names: Mapping[str, object]) -> str:
    return ", ".join(names) or "none"


Values = Annotated[tuple[Scalar, ...], Field(min_length=1)]


class StageConfig(JobOptions):
    """One stage of a pipeline file.

    Attributes:
        job: the command, such as "train-qnet", or the import path of a job, package.module:JOB.
        config: its job file, relative to the pipeline file; None where `set` has all it needs.
        set: overrides of the job file's fields, each "field=value".
        needs: stages that have to be finished first, beside those whose output this one reads.
        slots: number of slots that it takes; None for its `optimization.processes`.
        matrix: name of the matrix of the file by which it is repeated; `{variable}` in its name,
            `config`, `set` and `needs` is replaced, as `{name}` of the file's values is.
    """

    job: str
    config: Path | None = None
    set: tuple[str, ...] = ()
    needs: tuple[str, ...] = ()
    slots: int | None = Field(default=None, ge=1)
    matrix: str | None = None


class PipelineConfig(JobOptions):
    """A pipeline file.

    Attributes:
        output: folder of the log files and of `summary.json`.
        slots: number of processes that may run side by side; a stage with more processes takes all slots.
        matrix: lists of values by the name of a matrix and of a variable; the lists of one matrix have one length.
        values: what stages share, by name; `--set NAME=value` replaces one.
        stages: the stages by name. Of those that could start, the first ones do.
    """

    output: Path
    slots: int = Field(default=1, ge=1)
    matrix: Mapping[str, Mapping[str, Values]] = Field(default_factory=dict)
    values: Mapping[str, Scalar] = Field(default_factory=dict)
    stages: Mapping[str, StageConfig] = Field(min_length=1)

    @model_validator(mode="after")
    def _needs_are_stages(self) -> Self:
        if OUTPUT in self.values:
            raise ValueError(f"values.{OUTPUT} is always the pipeline's own folder; take another name")
        for name in (*self.values, *chain(*self.matrix.values())):
            if not _VARIABLE.fullmatch(f"{{{name}}}"):
                raise ValueError(f"{name!r} is no name for a value; use letters, digits and _, and no digit first")
        stages = expanded(self)
        for name, stage in stages.items():
            for need in stage.needs:
                if need not in stages or need == name:
                    raise ValueError(f"stages.{name}.needs has {need!r}; name another stage of {', '.join(stages)}")
            if stage.slots is not None and stage.slots > self.slots:
                raise ValueError(
                    f"stages.{name}.slots is {stage.slots}, but the pipeline has {self.slots}; "
                    "raise slots or lower the stage's"
                )
        return self


def load_pipeline(
    path: Path, overrides: Sequence[str] = (), *, slots: int | None = None, output: Path | None = None
) -> PipelineConfig:
    """Read a pipeline file, its matrices written out."""
    path = shipped_path(path)
    options = {"slots": slots, "output": None if output is None else str(output)}
    config = load_config(PipelineConfig, path, options=options)
    stage_overrides, values = _sorted(overrides, config.values)
    if values:  # stages are named by them, too
        config = load_config(PipelineConfig, path, options={**options, **values})
    stages = expanded(config)
    more = _by_stage(stages, stage_overrides)
    placed = {
        name: stage.model_copy(
            update={
                "config": None if stage.config is None else path.parent / stage.config,
                "set": (*stage.set, *more[name]),
            }
        )
        for name, stage in stages.items()
    }
    return config.model_copy(update={"stages": placed})


def _sorted(overrides: Sequence[str], values: Mapping[str, Scalar]) -> tuple[list[str], dict[str, str]]:
    """Overrides of stages' fields, and the fields of the file's values with what replaces them."""
    of_stages, replaced = [], {}
    for override in overrides:
        name, equals, value = override.partition("=")
        if "." in name:
            of_stages.append(override)
        elif name in values and equals:
            replaced[f"values.{name}"] = value
        else:
            raise ConfigError(
                f"--set {override!r} names neither a stage nor a value; write stage.field=value, or NAME=value "
                f"with one of the file's values: {_listed(values)}"
            )
    return of_stages, replaced


def _by_stage(stages: Mapping[str, StageConfig], overrides: Sequence[str]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {name: [] for name in stages}
    for override in overrides:
        stage, _, rest = override.partition(".")
        if stage not in found:
            raise ConfigError(f"--set {override!r}: there is no stage {stage!r}; name one of {', '.join(found)}")
        found[stage].append(rest)
    return found

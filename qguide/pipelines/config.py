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
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from qguide.pipelines.matrix import Scalar, expanded
from qguide.qnet.errors import ConfigError
from qguide.training.configs.job_files import load_config
from qguide.training.shipped import shipped_path

Values = Annotated[tuple[Scalar, ...], Field(min_length=1)]


class StageConfig(BaseModel):
    """One stage of a pipeline file.

    Attributes:
        job: the command, such as "train-qnet", or the import path of a job, package.module:JOB.
        config: its job file, relative to the pipeline file; None where `set` has all it needs.
        set: overrides of the job file's fields, each "field=value".
        needs: stages that have to be finished first, beside those whose output this one reads.
        slots: number of slots that it takes; None for its `optimization.processes`.
        matrix: name of the matrix of the file by which it is repeated; `{variable}` in its name,
            `config`, `set` and `needs` is replaced.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    job: str
    config: Path | None = None
    set: tuple[str, ...] = ()
    needs: tuple[str, ...] = ()
    slots: int | None = Field(default=None, ge=1)
    matrix: str | None = None


class PipelineConfig(BaseModel):
    """A pipeline file.

    Attributes:
        output: folder of the log files and of `summary.json`.
        slots: number of processes that may run side by side; a stage with more processes takes
            all slots.
        matrix: lists of values by the name of a matrix and of a variable; the lists of one matrix
            have one length.
        stages: the stages by name. Of those that could start, the first ones do.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    output: Path
    slots: int = Field(default=1, ge=1)
    matrix: Mapping[str, Mapping[str, Values]] = Field(default_factory=dict)
    stages: Mapping[str, StageConfig] = Field(min_length=1)

    @model_validator(mode="after")
    def _needs_are_stages(self) -> Self:
        stages = expanded(self.stages, self.matrix)
        for name, stage in stages.items():
            for need in stage.needs:
                if need not in stages or need == name:
                    raise ValueError(
                        f"stages.{name}.needs has {need!r}; name another stage of "
                        f"{', '.join(stages)}"
                    )
            if stage.slots is not None and stage.slots > self.slots:
                raise ValueError(
                    f"stages.{name}.slots is {stage.slots}, but the pipeline has {self.slots}; "
                    "raise slots or lower the stage's"
                )
        return self


def load_pipeline(
    path: Path,
    overrides: Sequence[str] = (),
    *,
    slots: int | None = None,
    output: Path | None = None,
) -> PipelineConfig:
    """Read a pipeline file, its matrices written out.

    Args:
        overrides: "stage.field=value" changes a field of that stage's job.
        slots, output: replace those of the file.
    """
    path = shipped_path(path)
    options = {"slots": slots, "output": None if output is None else str(output)}
    config = load_config(PipelineConfig, path, options=options)
    stages = expanded(config.stages, config.matrix)
    more = _by_stage(stages, overrides)
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


def _by_stage(stages: Mapping[str, StageConfig], overrides: Sequence[str]) -> dict[str, list[str]]:
    """The overrides of each stage's job."""
    found: dict[str, list[str]] = {name: [] for name in stages}
    for override in overrides:
        stage, dot, rest = override.partition(".")
        if not dot or "=" in stage:
            raise ConfigError(f"--set {override!r} names no stage; write stage.field=value")
        if stage not in found:
            raise ConfigError(
                f"--set {override!r}: there is no stage {stage!r}; name one of {', '.join(found)}"
            )
        found[stage].append(rest)
    return found

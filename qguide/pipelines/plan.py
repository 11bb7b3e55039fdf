"""The plan of a pipeline: its stages in an order in which each finds what it reads."""

import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from glob import glob
from graphlib import CycleError, TopologicalSorter
from itertools import combinations
from pathlib import Path
from typing import Final, Literal

from pydantic import BaseModel

from qguide.jobs.table import find_job
from qguide.pipelines.config import PipelineConfig, StageConfig
from qguide.qnet.errors import ConfigError
from qguide.training.configs.job_files import load_config
from qguide.training.data.row_files import address_of

OUTPUT: Final = "output"
EMBEDDED: Final = "embedded"
NO_MODEL: Final = ("expert", "random", "scripted")
"""Policies without a file."""

Model = Literal["policy", "qnet"]

MODEL_FIELDS: Final[Mapping[str, Model]] = {
    "base": "policy",
    "checkpoints": "qnet",
    "policy": "policy",
    "reference": "policy",
    "rollouts": "policy",
    "scorer": "policy",
    "tokenizer": "qnet",
    "trunk": "policy",
    "guide": "qnet",
    "qnet": "qnet",
    "qnets": "qnet",
    "reward_model": "qnet",
    "verifier": "qnet",
}
"""Fields that name a model: a folder, a name on the hub, or one that ships with QGuide."""


@dataclass(frozen=True, slots=True)
class Read:
    """A path that a job reads.

    Attributes:
        field: its field, as in `--set`.
        named: the value of the field, as it was written.
        model: the kind of model that it names; None for a file or a run folder.
    """

    field: str
    named: str
    model: Model | None = None

    @property
    def path(self) -> Path:
        """The absolute path."""
        if self.model is not None and self.named == EMBEDDED:
            from qguide.qnet.models.loading import embedded_path

            return embedded_path(self.model)
        return Path(self.named).resolve()


def output_of(config: BaseModel) -> Path:
    """The absolute path of the run folder that a job writes."""
    return Path(getattr(config, OUTPUT)).resolve()


def reads_of(config: BaseModel) -> Iterator[Read]:
    """Everything that a job reads: fields that are paths, and fields that name models."""
    for field in type(config).model_fields:
        if field != OUTPUT:
            yield from _reads(field, field, getattr(config, field))


def _reads(name: str, field: str, value: object) -> Iterator[Read]:
    match value:
        case BaseModel():
            for inner in type(value).model_fields:
                yield from _reads(f"{name}.{inner}", inner, getattr(value, inner))
        case Mapping():
            for key, item in value.items():
                yield from _reads(f"{name}.{key}", field, item)
        case tuple() | list():
            for item in value:
                yield from _reads(name, field, item)
        case Path():
            yield Read(name, str(value), MODEL_FIELDS.get(field))
        case str() if field in MODEL_FIELDS and value not in ("", *NO_MODEL):
            yield Read(name, value, MODEL_FIELDS[field])


LOGS: Final = "logs"


@dataclass(frozen=True, slots=True)
class Stage:
    """A stage whose job file has been read.

    Attributes:
        arguments: the command line after `qguide`.
        program: what is started with the arguments; this process's Python with QGuide.
    """

    name: str
    job: str
    config: BaseModel
    arguments: tuple[str, ...]
    reads: tuple[Read, ...]
    output: Path
    needs: tuple[str, ...]
    slots: int
    program: tuple[str, ...] = (sys.executable, "-P", "-m", "qguide")

    @property
    def command(self) -> list[str]:
        """The command line that starts it."""
        return [*self.program, *self.arguments]

    @property
    def shown_command(self) -> str:
        """The command line as a user would write it."""
        return shlex.join(("qguide", *self.arguments))


@dataclass(frozen=True, slots=True)
class Plan:
    """The stages by name, in the order of the file."""

    output: Path
    slots: int
    stages: Mapping[str, Stage]
    wanted: frozenset[str]

    def order(self) -> Iterator[Stage]:
        """The stages to run, each after those that it needs."""
        graph = {stage.name: stage.needs for stage in self.stages.values()}
        for name in TopologicalSorter(graph).static_order():
            if name in self.wanted:
                yield self.stages[name]

    def log(self, stage: Stage) -> Path:
        """The file with a stage's output."""
        return self.output / LOGS / f"{stage.name}.log"


def build_plan(pipeline: PipelineConfig, *, only: Sequence[str] = ()) -> Plan:
    """Read every stage's job file and find out which stage needs which."""
    configs = {
        name: load_config(find_job(stage.job).config_type(), stage.config, stage.set)
        for name, stage in pipeline.stages.items()
    }
    outputs = {name: output_of(config) for name, config in configs.items()}
    _require_apart(pipeline, outputs)
    stages, writers = {}, {}
    for name, stage in pipeline.stages.items():
        reads = tuple(reads_of(configs[name]))
        read_from = writers[name] = [_writer(read, outputs) for read in reads]
        if name in read_from:
            raise ConfigError(f"stage {name} reads its own output {outputs[name]}; change one")
        needed = {*stage.needs, *read_from}
        trainer = getattr(configs[name], "optimization", None)
        stages[name] = Stage(
            name=name,
            job=stage.job,
            config=configs[name],
            arguments=_arguments(stage),
            reads=reads,
            output=outputs[name],
            needs=tuple(other for other in pipeline.stages if other in needed),
            slots=stage.slots or min(int(getattr(trainer, "processes", 1)), pipeline.slots),
        )
    wanted = frozenset(_with_needs(stages, only) if only else stages)
    for name in stages:
        if name in wanted:
            _require_present(name, stages[name].reads, writers[name])
    plan = Plan(pipeline.output, pipeline.slots, stages, wanted)
    try:
        list(plan.order())
    except CycleError as error:
        circle = " -> ".join(error.args[1])
        raise ConfigError(f"stages {circle} need each other; change what they read") from error
    return plan


def _with_needs(stages: Mapping[str, Stage], names: Sequence[str]) -> set[str]:
    found: set[str] = set()
    pending = list(names)
    while pending:
        name = pending.pop()
        if name not in stages:
            raise ConfigError(f"--only {name}: there is no such stage; name one of {', '.join(stages)}")
        if name not in found:
            found.add(name)
            pending += stages[name].needs
    return found


def _arguments(stage: StageConfig) -> tuple[str, ...]:
    overrides = [part for override in stage.set for part in ("--set", override)]
    file = () if stage.config is None else ("--config", str(stage.config))
    return (stage.job, *file, *overrides)


def _require_apart(pipeline: PipelineConfig, outputs: Mapping[str, Path]) -> None:
    """Refuse outputs that are the same folder, or one inside the other.

    A stage that reads the inner one would be taken to need the stage of the outer one only.
    Stages may write inside the pipeline's own folder, beside its logs.
    """
    for (name, output), (other, second) in combinations(outputs.items(), 2):
        if output == second:
            raise ConfigError(f"stages {name} and {other} both write {output}; give one another output")
        if output.is_relative_to(second) or second.is_relative_to(output):
            raise ConfigError(
                f"the outputs of stages {name} and {other} lie one inside the other: {output} and "
                f"{second}; give one another output"
            )
    own = pipeline.output.resolve()
    for name, output in outputs.items():
        if own.is_relative_to(output) or output.is_relative_to(own / LOGS):
            raise ConfigError(
                f"stage {name} writes {output}, where the pipeline keeps its logs and summary "
                f"({own}); give one another output"
            )


def _writer(read: Read, outputs: Mapping[str, Path]) -> str | None:
    """The stage that writes a path; None if it lies in no stage's output."""
    for name, output in outputs.items():
        if read.path.is_relative_to(output):
            return name
    return None


def _require_present(stage: str, reads: Sequence[Read], writers: Sequence[str | None]) -> None:
    for read, writer in zip(reads, writers, strict=True):
        # A model may also be a name on the hub, and rows lie at an address: the job looks there.
        elsewhere = read.model is not None or address_of(Path(read.named))
        there = read.path.exists() or glob(str(read.path))  # a source may have a star
        if writer is None and not elsewhere and not there:
            raise ConfigError(
                f"stage {stage} reads {read.field} = {read.named}, which does not exist and which "
                "no stage writes; correct it, or add the stage that writes it"
            )

"""Paths in the configuration of a job: what it reads, and what it writes."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from pydantic import BaseModel

OUTPUT: Final = "output"
EMBEDDED: Final = "embedded"
EXPERT: Final = "expert"

Model = Literal["policy", "qnet"]

MODEL_FIELDS: Final[Mapping[str, Model]] = {
    "base": "policy",
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


def processes_of(config: BaseModel) -> int:
    """Number of processes that a job starts; a trainer's configuration says it."""
    return int(getattr(getattr(config, "optimization", None), "processes", 1))


def reads_of(config: BaseModel) -> Iterator[Read]:
    """Everything that a job reads: fields that are paths, and fields that name models."""
    for field in type(config).model_fields:
        if field != OUTPUT:
            yield from _reads(field, field, getattr(config, field))


def _reads(name: str, field: str, value: object) -> Iterator[Read]:
    """The paths in a field's value."""
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
        case str() if field in MODEL_FIELDS and value not in ("", EXPERT):
            yield Read(name, value, MODEL_FIELDS[field])

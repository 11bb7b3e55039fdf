"""Reference page of the options of all jobs."""

import inspect
from typing import Final, get_args

from pydantic import BaseModel

from qguide.jobs.table import JOBS
from qguide.pipelines.config import PipelineConfig
from qguide.training.environment import EnvironmentConfig
from qguide.training.environments.adapters.config import AdaptedConfig
from qguide.training.environments.registry import ENVIRONMENTS, find_environment
from tools.reference_pages.fields import default, limits, meanings
from tools.reference_pages.markdown import code, page, table

_INTRODUCTION: Final = (
    "The fields of each job's TOML file; `--set field=value` overrides one. The fields of the "
    "`[environment]` table depend on the environment; tables shared by several jobs are at the "
    "end. Hashes that a job fills in itself are omitted."
)
_PIPELINES: Final = (
    "The fields of a [pipeline's](../train/pipelines.md) TOML file. `--set stage.field=value` "
    "overrides a field of that stage's job."
)


def jobs_page() -> str:
    """Tables of the fields of every job, then of their nested tables."""
    parts = [_INTRODUCTION]
    tables: dict[str, type[BaseModel]] = {}
    for job in JOBS.values():
        kind = job.config_type()
        parts += [f"## qguide {job.name}", _rows_of(kind)]
        tables |= _tables_in(kind)
    parts += ["## qguide run", _PIPELINES, _rows_of(PipelineConfig)]
    tables |= _tables_in(PipelineConfig)
    for name in ENVIRONMENTS:
        kind = find_environment(name).config
        parts += [f"## Environment {name}", _rows_of(kind)]
    parts += ["## Environment of another interface", _rows_of(AdaptedConfig)]
    del tables[EnvironmentConfig.__name__]
    for name, kind in tables.items():
        parts += [f"## Table {name}", _summary(kind), _rows_of(kind)]
    return page("Job options", *parts)


def _rows_of(kind: type[BaseModel]) -> str:
    texts, ranges = meanings(kind), limits(kind)
    rows = [
        (code(name), default(kind, name), _value(name, ranges[name]), texts.get(name, ""))
        for name in kind.model_fields
        if not name.endswith("_sha256")
    ]
    return table(("field", "default", "value", "meaning"), rows)


def _value(name: str, words: str) -> str:
    """Type and limits of a field; those of the environment's table depend on its name."""
    return "table of the environment" if name == "environment" and "table" in words else words


def _summary(kind: type[BaseModel]) -> str:
    return inspect.cleandoc(kind.__doc__ or "").partition("\n\n")[0]


def _tables_in(kind: type[BaseModel]) -> dict[str, type[BaseModel]]:
    """Models nested in the fields of a model, by name."""
    found: dict[str, type[BaseModel]] = {}
    for field in kind.model_fields.values():
        for one in (field.annotation, *get_args(field.annotation)):
            if isinstance(one, type) and issubclass(one, BaseModel):
                found |= {one.__name__: one} | _tables_in(one)
    return found

"""Reference pages of the jobs: a list with shared tables, and a page of options for each."""

import ast
import inspect
from collections import Counter
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Final, get_args

from pydantic import BaseModel

from qguide.jobs.table import JOBS, Job
from qguide.pipelines.config import PipelineConfig
from qguide.training.environment import EnvironmentConfig
from qguide.training.environments.adapters.config import AdaptedConfig
from qguide.training.environments.registry import ENVIRONMENTS, find_environment
from tools.reference_pages.fields import default, limits, meanings
from tools.reference_pages.markdown import code, page, table

_INTRODUCTION: Final = (
    "Each job has a page with the fields of its TOML file; `--set field=value` overrides one. "
    "Below the list are the `[environment]` tables, whose fields depend on the environment, and "
    "the tables that several jobs share. Hashes that a job fills in itself are omitted."
)
_PIPELINES: Final = (
    "The fields of a [pipeline's](../train/pipelines.md) TOML file. `--set stage.field=value` "
    "overrides a field of that stage's job."
)


def job_pages() -> dict[str, str]:
    """The page of each job, by its name: what it is, its fields, and its nested tables."""
    shared = _shared_tables()
    return {job.name: _job_page(job, shared) for job in JOBS.values()}


def jobs_page() -> str:
    """The list of the jobs, then the fields of what several of them share."""
    listed = [(f"[{code(f'qguide {name}')}](jobs/{name}.md)", JOBS[name].help) for name in JOBS]
    parts = [_INTRODUCTION, table(("job", "purpose"), listed)]
    parts += ["## qguide run", _PIPELINES, _rows_of(PipelineConfig)]
    for name in ENVIRONMENTS:
        kind = find_environment(name).config
        parts += [f"## Environment {name}", _rows_of(kind)]
    parts += ["## Environment of another interface", _rows_of(AdaptedConfig)]
    parts += _sections(_tables_in(PipelineConfig) | _shared_tables())
    return page("Job options", *parts)


def _job_page(job: Job, shared: Mapping[str, object]) -> str:
    """A job's page; what only it has stands on it, the rest behind links."""
    kind = job.config_type()
    tables = _tables_in(kind)
    elsewhere = [f"[{name}](../jobs.md#table-{name.lower()})" for name in tables if name in shared]
    if tables.pop(EnvironmentConfig.__name__, None):
        elsewhere.insert(0, "[the environment's](../jobs.md#environment-alfworld)")
    own = {name: one for name, one in tables.items() if name not in shared}
    explained = _docstring(job.module)
    links = [f"Tables of several jobs: {', '.join(elsewhere)}."] if elsewhere else []
    parts = [job.help, explained.partition("\n\n")[2], "## Options", _rows_of(kind), *links]
    return page(f"qguide {job.name}", *(part for part in parts if part), *_sections(own))


def _docstring(module: str) -> str:
    """A module's docstring, read from its file: trainers import torch."""
    spec = find_spec(module)
    assert spec is not None
    assert spec.origin is not None
    return ast.get_docstring(ast.parse(Path(spec.origin).read_text())) or ""


def _shared_tables() -> dict[str, type[BaseModel]]:
    """The nested tables that more than one job has, by name."""
    of_jobs = [_tables_in(job.config_type()) for job in JOBS.values()]
    counts = Counter(name for tables in of_jobs for name in tables)
    found = {name: kind for tables in of_jobs for name, kind in tables.items()}
    shared = {name: kind for name, kind in found.items() if counts[name] > 1}
    shared.pop(EnvironmentConfig.__name__, None)
    return shared


def _sections(tables: Mapping[str, type[BaseModel]]) -> list[str]:
    return [part for name, kind in tables.items() for part in (f"## Table {name}", _summary(kind), _rows_of(kind))]


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

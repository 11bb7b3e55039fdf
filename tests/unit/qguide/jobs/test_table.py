"""The table of jobs against the jobs, and the commands that are made from it."""

from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel
from typer import Context
from typer.main import get_command

from qguide.cli import app
from qguide.jobs.options import EVALUATE, fields_of
from qguide.jobs.table import JOBS, Job, find_job
from qguide.qnet.errors import ConfigError


@pytest.mark.parametrize("job", JOBS.values(), ids=JOBS)
def test_a_job_is_there_and_its_options_fill_its_fields(job: Job) -> None:
    kind = job.config_type()
    assert issubclass(kind, BaseModel)
    assert callable(job.function())
    for option in job.options:
        for name in option.fields or (option.name,):
            first, *_ = name.split(".")
            assert first in kind.model_fields


def test_every_job_is_a_command_with_a_job_file_and_its_options() -> None:
    commands: dict[str, Any] = get_command(app).commands  # type: ignore[attr-defined]
    for job in JOBS.values():
        flags = {flag for parameter in commands[job.name].params for flag in parameter.opts}
        assert {"--config", "--set"} <= flags
        assert {one.name if one.argument else one.flag for one in job.options} <= flags


def test_serve_is_the_first_command() -> None:
    assert next(iter(get_command(app).commands)) == "serve"  # type: ignore[attr-defined]


def test_options_fill_fields_of_tables_and_lists() -> None:
    given: dict[str, Any] = dict.fromkeys(option.name for option in EVALUATE)
    given |= {"environment": "fake", "generated": "100:2", "seeds": "0, 1", "candidates": 3}
    assert fields_of(EVALUATE, given) == {
        "environment.name": "fake",
        "environment.first_seed": "100",
        "environment.count": "2",
        "seeds": ["0", "1"],
        "candidates": 3,
    }


@pytest.mark.parametrize(
    "given", [{"generated": "7"}, {"generated": "0:2:3"}, {"generated": "0:2", "games": Path("g")}]
)
def test_an_option_that_cannot_be_taken_is_named(given: dict[str, Any]) -> None:
    options = dict.fromkeys(option.name for option in EVALUATE) | given
    with pytest.raises(ConfigError, match="--generated"):
        fields_of(EVALUATE, options)


@pytest.mark.parametrize("name", ["export-data", "serve", "nothing"])
def test_what_writes_no_run_folder_is_no_stage(name: str) -> None:
    with pytest.raises(ConfigError, match=name):
        find_job(name)


def test_a_job_that_is_not_installed_is_named_by_its_import_path() -> None:
    job = find_job("benchmarks.recorded.jobs:RERANK")
    group: Any = get_command(app)
    command = group.get_command(Context(group), "benchmarks.recorded.jobs:RERANK")
    assert job.name == "rerank-recorded"
    assert {"--config", "--set"} <= {flag for one in command.params for flag in one.opts}


@pytest.mark.parametrize("name", ["no.such.module:JOB", "qguide.jobs.table:NONE", "qguide.cli:app"])
def test_an_import_path_of_no_job_is_named(name: str) -> None:
    with pytest.raises(ConfigError, match=name):
        find_job(name)

"""Commands of the jobs, made from their table: `qguide JOB --config FILE --set field=value`.

Run again, a job resumes. Its modules are imported when it runs.
"""

from collections.abc import Iterable, Mapping
from dataclasses import asdict
from importlib import import_module
from inspect import Parameter, Signature
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape

from qguide.commands.errors import shown_errors
from qguide.jobs.options import Option, fields_of
from qguide.jobs.table import JOBS, Job
from qguide.qnet.models.manifest import Manifest, figure_text
from qguide.training.configs.job_files import load_config

CONFIG_HELP = "The job's TOML file; docs/reference/jobs.md lists its fields and their defaults."

Config = Annotated[Path | None, typer.Option(help=CONFIG_HELP)]
Overrides = Annotated[
    list[str] | None, typer.Option("--set", help="field=value or table.field=value; overrides the file.")
]


def add_jobs(app: typer.Typer, jobs: Iterable[Job] = JOBS.values()) -> None:
    """Add the command of each job, below the heading of its group."""
    for job in jobs:
        app.command(job.name, help=job.help, rich_help_panel=job.group)(_command_of(job))


def _command_of(job: Job) -> Any:
    """A function with the job's options as its parameters, as typer reads them."""

    def command(**given: Any) -> None:
        with shown_errors():
            options = fields_of(job.options, given)
            kind, run = job.config_type(), job.function()
            config = load_config(kind, given["config"], given["overrides"] or (), options=options)
            _show(job, run(config), config)

    shared = {"config": Config, "overrides": Overrides}
    annotations = {option.name: _annotation(option) for option in job.options} | shared
    parameters = [
        Parameter(name, Parameter.KEYWORD_ONLY, default=None, annotation=annotation)
        for name, annotation in annotations.items()
    ]
    command.__signature__ = Signature(parameters)  # type: ignore[attr-defined]
    command.__annotations__ = annotations
    return command


def _annotation(option: Option) -> Any:
    described = typer.Argument if option.argument else typer.Option
    return Annotated[option.kind | None, described(help=option.help)]


def _show(job: Job, result: Any, config: Any) -> None:
    """Print what a job returned; only once under a launcher."""
    from qguide.training.data.runs import is_main_process

    if job.prints == "" or not is_main_process():
        return
    console = Console()
    if job.prints:
        module, _, name = job.prints.partition(":")
        getattr(import_module(module), name)(result, console)
    elif isinstance(result, Manifest):
        _show_trained(job.name, result, config.output / "checkpoint", console)
    else:
        show_figures(job.name, result if isinstance(result, Mapping) else asdict(result), console)


def _show_trained(title: str, trained: Manifest, checkpoint: Path, console: Console) -> None:
    """Print the figures of a trained model and where it is, then the licence of a Q model."""
    show_figures(title, {**trained.metrics, "checkpoint": checkpoint}, console)
    if trained.kind != "policy":
        from qguide.training.licence.verdict import show_licence

        show_licence(trained, console)


def show_figures(title: str, figures: Mapping[str, Any], console: Console) -> None:
    """Print the figures of a finished job, one per line."""
    console.print(f"[bold]{title}[/bold]")
    for name in figures:
        console.print(f"  {name}: {escape(figure_text(name, figures))}", highlight=False)

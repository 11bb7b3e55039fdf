"""`qguide run`: the jobs of a pipeline, side by side where possible, and resumed."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from qguide.commands.errors import shown_errors

if TYPE_CHECKING:
    from qguide.pipelines.plan import Plan


def run(
    pipeline: Annotated[Path, typer.Argument(help="The pipeline's TOML file.")],
    slots: Annotated[int | None, typer.Option(min=1, help="Processes side by side; replaces the file's.")] = None,
    output: Annotated[Path | None, typer.Option(help="Folder of logs and summary; replaces the file's.")] = None,
    only: Annotated[
        list[str] | None, typer.Option("--only", help="Run this stage and what it needs; may be given repeatedly.")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the plan only.")] = False,
    redo_changed: Annotated[
        bool,
        typer.Option(
            "--redo-changed",
            help="Run stages again if their configuration or inputs have changed since they "
            "finished or began; their output is moved aside.",
        ),
    ] = False,
    retry_failures: Annotated[
        bool,
        typer.Option(
            "--retry-failures",
            help="Start finished stages again of which tasks failed, but not where replays alone differed; only "
            "those are played.",
        ),
    ] = False,
    overrides: Annotated[
        list[str] | None,
        typer.Option(
            "--set", help="stage.field=value overrides a field of a stage's job, NAME=value one of the file's values."
        ),
    ] = None,
) -> None:
    """Run a pipeline of jobs; run again, it resumes."""
    with shown_errors():
        from qguide.pipelines.config import load_pipeline
        from qguide.pipelines.plan import build_plan
        from qguide.pipelines.summary import SummaryFile
        from qguide.pipelines.views import print_plan

        read = load_pipeline(pipeline, overrides or (), slots=slots, output=output)
        plan = build_plan(read, only=only or ())
        if dry_run:
            print_plan(plan, SummaryFile(plan.output).summary, Console())
        else:
            _run(plan, redo_changed=redo_changed, retry_failures=retry_failures)


def _run(plan: "Plan", *, redo_changed: bool, retry_failures: bool) -> None:
    from qguide.pipelines.runner import PipelineRunner, StopSignals
    from qguide.pipelines.summary import SummaryFile, locked_folder
    from qguide.pipelines.views import print_times, print_verdicts, shown_progress

    console = Console()
    with locked_folder(plan.output), StopSignals() as stop:
        summaries = SummaryFile(plan.output)
        try:
            with shown_progress(plan, summaries.summary, console) as view:
                PipelineRunner(
                    plan, summaries, view=view, stop=stop, redo_changed=redo_changed, retry_failures=retry_failures
                ).run()
        finally:
            print_times(plan, summaries.summary, console)
            print_verdicts(plan, summaries.summary, console)

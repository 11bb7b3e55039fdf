"""`qguide report`, `compare` and `convert-records`: what records say, and records of before."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from qguide.commands.errors import shown_errors


def report(
    episodes: Annotated[list[Path], typer.Argument(help="Folders of recorded episodes, or offers-*.jsonl files.")],
    baseline: Annotated[
        str | None, typer.Option(help="The arm that the others are compared with: name@version, or 'one candidate'.")
    ] = None,
    html: Annotated[Path | None, typer.Option(help="HTML page to write.")] = None,
    json: Annotated[Path | None, typer.Option(help="JSON file to write.")] = None,
    skip_bad: Annotated[bool, typer.Option("--skip-bad", help="Leave out rows that cannot be read.")] = False,
    same_tasks: Annotated[
        bool,
        typer.Option("--same-tasks", help="The agent gets the same tasks again and again; intervals are of these."),
    ] = False,
) -> None:
    """Report whether guidance was worth it, from served episodes and their outcomes."""
    with shown_errors():
        from qguide.training.guidance_report.build import build_report
        from qguide.training.guidance_report.html_page import html_of
        from qguide.training.guidance_report.tables import print_report

        found = build_report(episodes, baseline=baseline, skip_bad=skip_bad, same_tasks=same_tasks)
        print_report(found, Console())
        if html is not None:
            html.write_text(html_of(found), encoding="utf-8")
        if json is not None:
            json.write_text(found.model_dump_json(indent=2) + "\n", encoding="utf-8")


def compare(
    runs: Annotated[list[Path], typer.Argument(help="Output folders of evaluations.")],
    against: Annotated[str, typer.Option(help="Method of the first evaluation that all are compared with.")] = "greedy",
    output: Annotated[Path | None, typer.Option(help="JSON file to write.")] = None,
) -> None:
    """Compare evaluations of different models on the same tasks."""
    with shown_errors():
        from qguide.training.jobs.compare import run_compare

        run_compare(runs, against, output, console=Console())


def convert_records(
    source: Annotated[
        list[Path], typer.Argument(help="Run folders of collect, explore, import, groups, rro; QGUIDE_EPISODES_DIR.")
    ],
) -> None:
    """Rewrite trees, decision groups and trajectories of before; the old files stay as *.v1.

    A source may also be a file of rows. Stop the server that writes to them first, and run this as its user. Nothing
    deletes the *.v1 files, which QGUIDE_EPISODES_MAX_FILES does not count: remove them when you need them no longer.
    """
    with shown_errors():
        from qguide.training.data.old_records import convert_file, record_files

        for path in (file for folder in source for file in record_files(folder)):
            typer.echo(f"{path}: {convert_file(path)} rows converted")

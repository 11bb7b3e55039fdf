"""`qguide compare`: evaluations of different models side by side."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from qguide.commands.errors import shown_errors


def compare(
    runs: Annotated[list[Path], typer.Argument(help="Output folders of evaluations.")],
    against: Annotated[
        str, typer.Option(help="Method of the first evaluation that all are compared with.")
    ] = "greedy",
    output: Annotated[Path | None, typer.Option(help="JSON file to write.")] = None,
) -> None:
    """Compare evaluations of different models on the same tasks."""
    with shown_errors():
        from qguide.training.jobs.compare import run_compare

        run_compare(runs, against, output, console=Console())

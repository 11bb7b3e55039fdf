"""`python -m benchmarks.learning`: see the package."""

from typing import Annotated

import typer
from rich.console import Console

app = typer.Typer(add_completion=False, no_args_is_help=True)


@app.callback()
def learning() -> None:
    """Measure learning while serving."""


@app.command()
def simulate(runs: Annotated[int, typer.Option(help="Runs of each case.")] = 100) -> None:
    """Play the decisions of learning at outcomes that are drawn."""
    from benchmarks.learning.simulation import shares

    console = Console()
    for case, share in shares(runs).items():
        console.print(f"{share:7.1%}  {case}", markup=False, highlight=False)


if __name__ == "__main__":
    app()

"""`qguide scorer …`: check anyone's scorer against the contract."""

from typing import Annotated

import typer

from qguide.commands.errors import shown_errors
from qguide.commands.findings import show_findings

app = typer.Typer(help="Scorers: anyone's, by import path or checkpoint.", no_args_is_help=True)


@app.callback()
def group() -> None:
    """Scorers: anyone's, by import path or checkpoint."""


@app.command()
def check(
    source: Annotated[
        str, typer.Argument(help="As in QGUIDE_Q_MODELS: package.module:NAME, or a checkpoint.")
    ],
) -> None:
    """Run the contract's checks on a scorer; exit 1 if one fails."""
    with shown_errors():
        from qguide.server.q_models.contract import build_scorer, check_scorer

        findings = check_scorer(build_scorer(source))
    raise typer.Exit(show_findings(findings))

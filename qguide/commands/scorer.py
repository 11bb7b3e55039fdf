"""`qguide scorer …` and `qguide plugin …`: check anyone's code against its contract."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Final, Literal

import typer
from rich.console import Console
from rich.text import Text

from qguide.commands.errors import shown_errors
from qguide.qnet.contract import Finding, Outcome

_COLOURS: Final[dict[Outcome, str]] = {"passed": "green", "failed": "red", "not checked": "yellow"}


def show_findings(findings: Sequence[Finding], *notes: str) -> int:
    """Print each finding with its remedy, then notes and counts; 1 if a check failed, else 0."""
    console = Console(soft_wrap=True, highlight=False)
    for finding in findings:
        line = Text(f"{finding.outcome:11}", style=_COLOURS[finding.outcome])
        console.print(line.append(f"  {finding.check.rule}", style="default"))
        if finding.detail:
            console.print(Text(f"             {finding.detail}"))
        if finding.outcome == "failed":
            console.print(Text(f"             remedy: {finding.check.remedy}"))
    for note in notes:
        console.print(Text(note))
    counts = Counter(finding.outcome for finding in findings)
    console.print(", ".join(f"{counts[outcome]} {outcome}" for outcome in _COLOURS))
    return 1 if counts["failed"] else 0


app = typer.Typer(help="Scorers: anyone's, by import path or checkpoint.", no_args_is_help=True)


@app.callback()
def group() -> None:
    """Scorers: anyone's, by import path or checkpoint."""


@app.command()
def check(
    source: Annotated[str, typer.Argument(help="As in QGUIDE_Q_MODELS: package.module:NAME, or a checkpoint.")],
) -> None:
    """Run the contract's checks on a scorer; exit 1 if one fails."""
    with shown_errors():
        from qguide.server.q_models.contract import build_scorer, check_scorer

        findings = check_scorer(build_scorer(source))
    raise typer.Exit(show_findings(findings))


plugins = typer.Typer(help="Labels, formats, methods and jobs: anyone's, by import path.", no_args_is_help=True)


@plugins.callback()
def plugin_group() -> None:
    """Labels, formats, methods and jobs: anyone's, by import path."""


@plugins.command("check")
def check_of_kind(
    kind: Annotated[Literal["formats", "jobs", "labels", "methods"], typer.Argument(help="What it is.")],
    name: Annotated[str, typer.Argument(help="A name, or an import path package.module:name.")],
    source: Annotated[
        Path | None, typer.Option(help="A recording in the format, or a file of the job that runs in seconds.")
    ] = None,
) -> None:
    """Run the contract's checks of a kind; exit 1 if one fails."""
    with shown_errors():
        from qguide.jobs.contracts import check_plugin

        findings = check_plugin(kind, name, source)
    raise typer.Exit(show_findings(findings))

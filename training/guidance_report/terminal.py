"""The report in a terminal."""

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from qguide.training.guidance_report.schema import GuidanceReport
from qguide.training.guidance_report.tables import (
    ReportTable,
    arms_table,
    detail_tables,
    reliability_table,
)


def print_report(report: GuidanceReport, console: Console) -> None:
    """Print the findings, then the tables."""
    _line(
        console, f"{report.episodes:,} episodes of {report.tasks:,} tasks, {report.steps:,} steps"
    )
    if report.bad_rows:
        _line(console, f"rows left out: {report.bad_rows:,}")
        for message in report.bad_row_messages:
            _line(console, f"  {message}")
    _line(console, f"verdict: {report.verdict}")
    for sentence in report.sentences:
        _line(console, f"• {sentence}")
    tables = [
        arms_table("arms", report.arms),
        *(arms_table(environment.name, environment.arms) for environment in report.environments),
        *map(reliability_table, report.reliability),
        *detail_tables(report),
    ]
    for table in tables:
        console.print(_rich(table))


def _line(console: Console, text: str) -> None:
    console.print(text, markup=False, highlight=False, soft_wrap=True)


def _rich(table: ReportTable) -> Table:
    shown = Table(title=escape(table.title), title_justify="left")
    for number, name in enumerate(table.names):
        shown.add_column(name, justify="right" if number else "left")
    for row in table.rows:
        shown.add_row(*map(escape, row))
    return shown

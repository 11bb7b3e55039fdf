"""Table of a read-ahead benchmark."""

from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table

from benchmarks.read_ahead.read_ahead import GOAL, ReadAheadRun


def print_read_ahead(run: ReadAheadRun, console: Console) -> None:
    """Print the medians of both servers, and whether the goal is kept."""
    title = (
        f"{run.history_tokens:,} new tokens, {run.candidates} candidates of "
        f"{run.candidate_tokens}, an upstream of {run.delay_s * 1e3:g} ms; medians in ms"
    )
    table = Table(title=title, box=SIMPLE)
    table.add_column("", no_wrap=True)
    for name in ("scoring", "whole step"):
        table.add_column(name, justify="right")
    table.add_row("candidates alone", f"{run.median('own_ms'):,.1f}", "")
    for label, name in (("read ahead", "ahead"), ("not read ahead", "cold")):
        ms, total_ms = run.median(f"{name}_ms"), run.median(f"{name}_total_ms")
        table.add_row(label, f"{ms:,.1f}", f"{total_ms:,.1f}")
    console.print(table)
    kept = "kept" if run.ratio <= GOAL else "missed"
    console.print(
        f"a history that was read ahead adds {run.ratio:.2f} × the candidates' own time, goal "
        f"{GOAL:g}: {kept}; Q differs by {max(run.differences):.1g} at most",
        highlight=False,
    )

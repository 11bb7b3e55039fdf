"""Table of a rollout benchmark."""

from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table

from benchmarks.measurement.records import RolloutsRun
from benchmarks.rollouts.rollouts import GOAL


def print_rollouts(run: RolloutsRun, console: Console) -> None:
    """Print the time of each number of episodes at once, and how much faster it is."""
    title = (
        f"{run.episodes} episodes of {run.steps} steps, {run.delay_s:g} s per answer; goal: {GOAL:g} × with 64 at once"
    )
    table = Table(title=title, box=SIMPLE)
    for name in ("at once", "requests", "seconds", "requests/s", "speed-up"):
        table.add_column(name, justify="right")
    for row in run.rows:
        table.add_row(
            str(row.parallel),
            str(row.requests),
            f"{row.seconds:.1f}",
            f"{row.requests / row.seconds:.1f}",
            f"{run.rows[0].seconds / row.seconds:.1f}",
        )
    console.print(table)

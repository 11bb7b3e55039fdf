"""Table of an episodes benchmark."""

from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table

from benchmarks.episodes.episodes import GOAL, EpisodesRun


def print_episodes(run: EpisodesRun, console: Console) -> None:
    """Print the cost of each step, and whether the goal is kept."""
    title = f"a step of {run.candidates} candidates of {run.candidate_bytes:,} bytes"
    table = Table(title=title, box=SIMPLE)
    table.add_column("store", no_wrap=True)
    for name in ("step", "CPU, ms", "held, KB", "Redis, KB", "bytes / first"):
        table.add_column(name, justify="right")
    for row in run.rows:
        redis = "" if row.redis_bytes is None else f"{row.redis_bytes / 1e3:,.1f}"
        times, held = f"{row.cpu_ms:.2f}", f"{row.held_bytes / 1e3:,.1f}"
        table.add_row(row.store, str(row.step), times, held, redis, f"{run.growth(row):.2f}")
    console.print(table)
    kept = "kept" if all(run.growth(row) <= GOAL for row in run.rows) else "missed"
    console.print(f"bytes of a late step at most {GOAL:g} × the earliest: {kept}", highlight=False)

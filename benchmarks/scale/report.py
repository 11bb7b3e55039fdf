"""Table, assumptions and plot of a scale benchmark."""

from pathlib import Path
from typing import Final

from rich.console import Console

from benchmarks.measurement.tables import print_table
from benchmarks.scale.config import SCENARIOS, ScaleRow, ScaleRun

_COLOURS: Final = ("#2563eb", "#b91c1c", "#d97706", "#0d9488", "#6b7280")
_HOUR_S: Final = 3600.0
_COLUMNS: Final = ("tasks", "replicas", "hours", "paid", "busy", "fullest", "read")


def print_scale(run: ScaleRun, console: Console) -> None:
    """Print the costs, every row, and what was assumed."""
    costs = run.costs
    console.print(f"costs: {costs.source}", highlight=False)
    console.print(
        f"a step draws for {1e3 * costs.draw_s:.3g} ms and scores for {1e3 * costs.score_s:.3g} ms;"
        f" 1,000 tokens of history are read for {1e6 * costs.draw_read_s:.3g} ms and "
        f"{1e6 * costs.score_read_s:.3g} ms; the environment takes "
        f"{1e3 * costs.environment_s:.3g} ms",
        highlight=False,
    )
    title = "paid: replica hours; fullest: work of the busiest replica / mean; read: not cached"
    print_table(console, title, ("", *_COLUMNS), map(_cells, run.rows))
    for scenario, meaning in SCENARIOS.items():
        console.print(f"{scenario}: {meaning}", highlight=False)
    console.print("Assumed:", highlight=False)
    for assumption in run.assumptions:
        console.print(f"- {assumption}", highlight=False)


def _cells(row: ScaleRow) -> list[str]:
    return [
        row.scenario,
        f"{row.tasks:,}",
        str(row.replicas),
        _hours(row.wall_s),
        _hours(row.replica_s),
        f"{row.busy_s / row.replica_s:.0%}",
        f"{row.imbalance:.2f}",
        f"{row.read_share:.0%}",
    ]


def _hours(seconds: float) -> str:
    return f"{seconds / _HOUR_S:.3g}"


def plot_scale(run: ScaleRun, path: Path) -> None:
    """Plot time and imbalance over replicas for the most tasks, and cost over tasks."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib.figure import Figure

    figure = Figure(figsize=(13, 4), layout="constrained")
    times, shares, costs = figure.subplots(1, 3)
    tasks = max((row.tasks for row in run.rows), default=0)
    largest = [row for row in run.rows if row.tasks == tasks]
    for colour, scenario in zip(_COLOURS, SCENARIOS, strict=True):
        rows = [row for row in largest if row.scenario == scenario]
        replicas = [row.replicas for row in rows]
        hours = [row.wall_s / _HOUR_S for row in rows]
        times.plot(replicas, hours, "o-", color=colour, label=scenario)
        shares.plot(replicas, [row.imbalance for row in rows], "o-", color=colour)
    hashed = [row for row in run.rows if row.scenario == "hashed"]
    ideal = [row for row in largest if row.scenario == "hashed"]
    if ideal:
        first = ideal[0]
        of_one = first.wall_s * first.replicas / _HOUR_S
        ends = [ideal[0].replicas, ideal[-1].replicas]
        times.plot(ends, [of_one / end for end in ends], ":", color="black", label="ideal")
    for replica_count in sorted({row.replicas for row in hashed}):
        rows = [row for row in hashed if row.replicas == replica_count]
        hours = [row.replica_s / _HOUR_S for row in rows]
        costs.plot([row.tasks for row in rows], hours, "o-", label=str(replica_count))
    for axes, x, y in (
        (times, "replicas", f"hours for {tasks:,} tasks"),
        (shares, "replicas", "busiest replica / mean"),
        (costs, "tasks", "replica hours, hashed"),
    ):
        axes.set_xscale("log")
        axes.set_xlabel(x)
        axes.set_ylabel(y)
        axes.grid(alpha=0.25)
    for axes, title in ((times, None), (costs, "replicas")):
        axes.set_yscale("log")
        if run.rows:
            axes.legend(frameon=False, fontsize=8, title=title)
    figure.savefig(path, dpi=150)

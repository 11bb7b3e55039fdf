"""Table of a fairness run."""

from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table

from benchmarks.fairness.fairness import ALONE, CHEAP_GOAL, GOAL, HEALTH_GOAL_MS
from benchmarks.measurement.records import FairnessRow, FairnessRun

_NAMES = ("endpoint", "scene")


def print_fairness(run: FairnessRun, console: Console) -> None:
    """Print the latencies of every scene and their ratio to those of the key alone."""
    title = (
        f"latency of one key, in ms; goals: p95 at most {GOAL:g} × alone, and from faults on "
        f"{CHEAP_GOAL:g} ×, with /healthz within {HEALTH_GOAL_MS:g} ms"
    )
    table = Table(title=title, box=SIMPLE)
    for name in (*_NAMES, "p50", "p95", "p99", "p95 / alone", "slowest health", "errors"):
        table.add_column(name, justify="left" if name in _NAMES else "right")
    for row in run.rows:
        table.add_row(*_cells(row, ratios_of(run)))
    console.print(table)


def ratios_of(run: FairnessRun) -> dict[tuple[str, str], float]:
    """By endpoint and scene, the 95th percentile divided by that of the key alone."""
    p95 = {(row.endpoint, row.scene): row.latency_ms.p95 for row in run.rows if row.latency_ms}
    return {
        (endpoint, scene): value / p95[endpoint, ALONE]
        for (endpoint, scene), value in p95.items()
        if (endpoint, ALONE) in p95
    }


def _cells(row: FairnessRow, ratios: dict[tuple[str, str], float]) -> list[str]:
    times, place = row.latency_ms, (row.endpoint, row.scene)
    shown = (times.p50, times.p95, times.p99) if times else ()
    ratio = f"{ratios[place]:.1f}" if place in ratios else ""
    errors = ", ".join(f"{number} × {status}" for status, number in row.errors.items())
    health = "" if row.slowest_health_ms is None else f"{row.slowest_health_ms:.0f}"
    latencies = [*(f"{ms:.0f}" for ms in shown), *[""] * (3 - len(shown))]
    return [*place, *latencies, ratio, health, errors]

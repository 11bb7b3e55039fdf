"""Table of a GPU check."""

from collections.abc import Iterator
from typing import Any, Final

from rich.console import Console
from rich.table import Table

from benchmarks.gpu.config import GpuRun, PartRow

_GIB = 1024**3
WARM_STEP_MS: Final = 10.0
"""Goal on an H200 for a step of 7 B at the shorter history, at most."""
SHARE_OF_ARITHMETIC: Final = 0.4
"""Goal for a training step, at least."""


def print_gpu(run: GpuRun, console: Console) -> None:
    """Print each part's outcome beside its goals, and why one did not pass."""
    machine = run.machine
    title = f"{machine.accelerator or machine.cpu}, torch {machine.torch}, {run.wall_s:.0f} s"
    table = Table(title=title)
    for name in ("part", "", "s", "figures", "goals"):
        table.add_column(name, justify="right" if name == "s" else "left")
    for part in run.parts:
        table.add_row(part.name, part.status, f"{part.wall_s:.0f}", _shown(part), "" if run.small else goals(part))
    console.print(table)
    for part in run.parts:
        if part.reason:
            console.print(f"{part.name}: {part.status}", style="red")
            console.print(part.reason, markup=False, highlight=False)


def goals(part: PartRow) -> str:
    """Goals of a part, and if its figures met them; a part passes without."""
    return "; ".join(f"{goal}: {'met' if met else 'missed'}" for goal, met in _goals(part.figures))


def _goals(figures: dict[str, Any]) -> Iterator[tuple[str, bool]]:
    if "share_of_arithmetic" in figures:
        yield f"{SHARE_OF_ARITHMETIC:.0%} of the arithmetic", figures["share_of_arithmetic"] >= SHARE_OF_ARITHMETIC
    for point, row in [*figures.get("warm_steps", {}).items()][:1]:
        yield f"{point} in {WARM_STEP_MS:.0f} ms", row["wall_ms"] <= WARM_STEP_MS


def _shown(part: PartRow) -> str:
    figures = part.figures
    if "tokens_per_s" in figures:
        peak = figures["peak_memory_bytes"]
        of_memory = f", {peak / _GIB:.1f} GiB" if peak else ""
        estimated = figures["estimated_memory_bytes"] / _GIB
        speed = f"{figures['tokens_per_s']:,.0f} tokens/s"
        share = f"{figures['share_of_arithmetic']:.0%} of the arithmetic"
        memory = f"{of_memory} (estimated {estimated:.1f})"
        return f"{figures['tokens']:,} tokens, {speed}, {share}{memory}"
    if "warm_steps" in figures:
        return _limits(figures)
    if "points" in figures:
        return "; ".join(
            f"{label}: " + ", ".join(f"{name} {row['wall_ms']:,.1f} ms" for name, row in rows.items())
            for label, rows in figures["points"].items()
        )
    if "tests" in figures:
        failed = len(figures["failed"])
        return f"{figures['tests']} tests, {figures['skipped']} skipped, {failed} failed"
    return ""


def _limits(figures: dict[str, Any]) -> str:
    """Steps and draws beside what limits them."""
    steps = [
        f"{point}: {row['wall_ms']:,.1f} ms, {_kernels(row)}"
        f"reading weights {row['reading_weights_ms']:,.1f}, arithmetic {row['arithmetic_ms']:,.1f}"
        for point, row in figures["warm_steps"].items()
    ]
    draws = figures["drawing"]
    drawn = f"a drawn token of {draws['candidates']}: {draws['further_token_ms']:,.1f} ms"
    return "; ".join([*steps, drawn])


def _kernels(row: dict[str, float]) -> str:
    return f"{row['kernels']} kernels {row['kernels_ms']:,.1f}, " if "kernels" in row else ""

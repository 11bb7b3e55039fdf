"""Tables and plot of a scoring benchmark."""

from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks.measurement.names import NAMES, OURS, over
from benchmarks.measurement.records import PointRow, Run, Samples

COLOURS = {
    "match-features": "#0891b2",
    "naive": "#b91c1c",
    "naive-packed": "#d97706",
    "padded": "#6b7280",
    "full-sequences": "#57534e",
    "dynamic-cache": "#0d9488",
    "vllm": "#7c3aed",
    "vllm-block32": "#c026d3",
    "http": "#65a30d",
    "vllm-http": "#db2777",
    "floor": "#2563eb",
}


def print_run(run: Run, console: Console) -> None:
    """Print the ratios at every point, the sessions, and implementations that disagree."""
    for model in dict.fromkeys(point.model for point in run.points):
        console.print(_ratios(run, model))
    if run.sessions:
        console.print(_sessions(run))
    for point in run.points:
        for row in point.contestants:
            if not row.agrees:
                console.print(
                    f"[red]{point.model} {point.label}: {row.name} is not compared[/red], because "
                    f"its Q differs from {run.reference}'s by {row.max_q_difference:.2g}",
                    highlight=False,
                )


def plot_run(run: Run, path: Path) -> None:
    """Plot each implementation's time divided by ours at each point, on a logarithmic scale."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib.figure import Figure

    figure = Figure(figsize=(max(7, 1.6 * len(run.points)), 4.5), layout="constrained")
    axes = figure.add_subplot()
    names = [name for name in _peers(run) if any(p.ratio(name) for p in run.points)]
    width = 0.8 / (len(names) + 1)
    for k, name in enumerate([*names, "floor"]):
        drawn = False
        for x, point in enumerate(run.points):
            ratio = _floor_ratio(run, point) if name == "floor" else _ratio(run, point, name)
            if ratio is None:
                continue
            # matplotlib omits labels that begin with an underscore from the legend.
            label, drawn = (f"_{name}" if drawn else name), True
            bars = axes.bar(x + k * width, ratio, width, color=COLOURS[name], label=label)
            axes.bar_label(bars, fmt=f"{ratio:.2g}", fontsize=7)
    axes.axhline(1, color="black", lw=1)
    axes.set_yscale("log")
    axes.set_xticks(
        [x + 0.4 - width / 2 for x in range(len(run.points))], [f"{point.model}\n{point.label}" for point in run.points]
    )
    axes.set_ylabel(f"{_clock(run)} over ours")
    axes.grid(axis="y", alpha=0.25)
    axes.legend(frameon=False, ncols=3, fontsize=8)
    machine = run.machine.accelerator or run.machine.cpu
    axes.set_title(f"{run.dtype}, {machine}, {run.repetitions} repetitions", fontsize=10)
    figure.savefig(path, dpi=150)


def _ratios(run: Run, model: str) -> Table:
    """Table of one model: points as columns, implementations as rows."""
    points = [point for point in run.points if point.model == model]
    table = Table(title=f"{model}: {_clock(run)} over ours, {run.dtype}, medians")
    table.add_column("")
    for point in points:
        table.add_column(point.label, justify="right", no_wrap=True)
    table.add_row("ours", *(_milliseconds(_time_s(run, point)) for point in points))
    for name in _peers(run):
        table.add_row(f"{name} / {over(name)}", *(_shown(_ratio(run, point, name)) for point in points))
    floors = [_floor_ratio(run, point) for point in points]
    table.add_row("ours / floor", *("" if f is None else f"{1 / f:.2f}×" for f in floors))
    table.add_row("GFLOP/s (GEMM)", *(f"{_rate(run, point) / 1e9:,.3g}" for point in points))
    furthest = [max(row.max_q_difference for row in point.contestants) for point in points]
    table.add_row("max |ΔQ|", *(f"{difference:.1g}" for difference in furthest))
    return table


def _sessions(run: Run) -> Table:
    table = Table(title="steps of concurrent sessions")
    for name in ("model", "point", "", "sessions", "scores/s", f"{_clock(run)} per step, ms"):
        table.add_column(name, justify="left" if name in ("model", "point", "") else "right")
    for row in run.sessions:
        table.add_row(
            row.model,
            row.label,
            row.name,
            str(row.sessions),
            f"{row.scores_per_s:,.1f}",
            f"{1000 * _spent_s(run, row.samples) / row.sessions:,.1f}",
        )
    return table


def _peers(run: Run) -> list[str]:
    took_part = {row.name for point in run.points for row in point.contestants}
    return [name for name in NAMES if name in took_part and name != OURS]


def _by_the_clock(run: Run) -> bool:
    """True if wall-clock time is compared, because an accelerator's work takes no CPU time."""
    return run.machine.device != "cpu"


def _clock(run: Run) -> str:
    return "time" if _by_the_clock(run) else "CPU time"


def _ratio(run: Run, point: PointRow, name: str) -> float | None:
    return point.ratio(name, wall=_by_the_clock(run))


def _time_s(run: Run, point: PointRow) -> float | None:
    ours = point.contestant(OURS)
    return None if ours is None else _spent_s(run, ours.samples)


def _spent_s(run: Run, samples: Samples) -> float:
    return samples.median_wall_s if _by_the_clock(run) else samples.median_cpu_s


def _floor_ratio(run: Run, point: PointRow) -> float | None:
    """The lower bound divided by our time; at most 1 unless the bound is wrong."""
    time_s = _time_s(run, point)
    floor_s = point.floor_wall_s if _by_the_clock(run) else point.floor_cpu_s
    return None if time_s is None else floor_s / time_s


def _rate(run: Run, point: PointRow) -> float:
    if _by_the_clock(run):
        return point.gemm_flops / point.gemm.median_wall_s
    return point.gemm_flops_per_s


def _milliseconds(time_s: float | None) -> str:
    return "differs" if time_s is None else f"{1000 * time_s:,.1f} ms"


def _shown(ratio: float | None) -> str:
    return "differs" if ratio is None else f"{ratio:.1f}×"

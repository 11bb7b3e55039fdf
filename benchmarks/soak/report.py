"""Table and plot of a soak test."""

from pathlib import Path

from rich.console import Console

from benchmarks.measurement.records import SoakRun
from benchmarks.measurement.tables import print_table

_MIB = 1024**2


def print_soak(run: SoakRun, console: Console) -> None:
    """Print the figures of a run."""
    tokens = run.computed_tokens + run.cached_tokens
    rows = {
        "steps": f"{run.requests:,} ({run.requests / run.seconds:,.1f}/s)",
        "tokens from the cache": f"{run.cached_tokens / max(1, tokens):.1%}",
        "cache, at most": f"{_mib(run.largest_cache_bytes)} of {_mib(run.budget_bytes)}",
        "evictions": f"{run.evictions:,}",
        "calls over the budget": f"{run.calls_over_budget:,} of {run.calls:,}",
        "checks of Q that failed": f"{run.failed_checks:,} of {run.checks:,}",
        "max |ΔQ|": f"{run.max_q_difference:.1g}",
        "memory, last quarter − second": _growth(run),
    }
    print_table(console, f"{run.sessions} sessions, {run.seconds:,.0f} s, {run.dtype}", ("", ""), rows.items())


def plot_soak(run: SoakRun, path: Path) -> None:
    """Plot cache size, its budget and the process's memory over time."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4), layout="constrained")
    axes = figure.add_subplot()
    minutes = [sample.at_s / 60 for sample in run.samples]
    axes.plot(minutes, [s.cache_bytes / _MIB for s in run.samples], label="cache", color="#2563eb")
    resident = [(s.at_s / 60, s.rss_bytes / _MIB) for s in run.samples if s.rss_bytes is not None]
    if resident:
        axes.plot(*zip(*resident, strict=True), label="process", color="#6b7280")
    axes.axhline(run.budget_bytes / _MIB, label="budget", color="#b91c1c", lw=1, ls="--")
    axes.set_ylim(bottom=0)
    axes.set_xlabel("minutes")
    axes.set_ylabel("MiB")
    axes.grid(axis="y", alpha=0.25)
    axes.legend(frameon=False)
    axes.set_title(f"{run.sessions} sessions, {run.requests:,} steps", fontsize=10)
    figure.savefig(path, dpi=150)


def _mib(nbytes: int) -> str:
    return f"{nbytes / _MIB:,.1f} MiB"


def _growth(run: SoakRun) -> str:
    growth = run.rss_growth_bytes
    return "unknown" if growth is None else f"{growth / _MIB:+,.1f} MiB"

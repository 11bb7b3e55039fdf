"""Table and plot of a load test."""

from pathlib import Path

from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table

from qguide.bench.measurement.records import LoadRow, ServeRun

OVERHEAD_GOAL_MS = 3.0
"""Goal for the median overhead with one client."""

_COLOURS = ("#2563eb", "#d97706", "#0d9488", "#b91c1c")
_COLUMNS = ("clients", "per s", "p50", "p95", "p99", "own", "client", "errors")


def print_serve(run: ServeRun, console: Console) -> None:
    """Print every load, and whether the overhead meets its goal."""
    title = (
        f"requests with M = {run.candidates}, in ms; own: latency minus drawing and scoring, "
        "client: a round trip to an idle server"
    )
    table = Table(title=title, box=SIMPLE)
    table.add_column("", no_wrap=True)
    for name in _COLUMNS:
        table.add_column(name, justify="right")
    for row in run.rows:
        table.add_row(*_cells(row))
    console.print(table)
    for row in run.rows:
        if row.clients == 1 and row.overhead_ms:
            kept = row.overhead_ms.p50 <= OVERHEAD_GOAL_MS
            console.print(
                f"{row.models} {row.endpoint}: {row.overhead_ms.p50:.2f} ms over drawing and "
                f"scoring at 1 client, {'within' if kept else 'over'} {OVERHEAD_GOAL_MS:g} ms; "
                f"{row.client_ms or 0:.2f} ms of it is a round trip to an idle server",
                highlight=False,
            )


def plot_serve(run: ServeRun, path: Path) -> None:
    """Plot requests per second and latency (p50 to p99) over the number of clients."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 4), layout="constrained")
    rates, latencies = figure.subplots(1, 2)
    answered = [row for row in run.rows if row.latency_ms and row.requests_per_s]
    kinds = dict.fromkeys((row.models, row.endpoint) for row in answered)
    for colour, (models, endpoint) in zip(_COLOURS, kinds, strict=False):
        rows = [row for row in answered if (row.models, row.endpoint) == (models, endpoint)]
        label = f"{models}, {endpoint}"
        clients = [row.clients for row in rows]
        rates.plot(clients, [row.requests_per_s for row in rows], "o-", color=colour, label=label)
        known = [row.latency_ms for row in rows if row.latency_ms]
        low, high = [ms.p50 for ms in known], [ms.p99 for ms in known]
        latencies.plot(clients, low, "o-", color=colour, label=label)
        latencies.fill_between(clients, low, high, color=colour, alpha=0.15, lw=0)
    for axes, name in ((rates, "requests/s"), (latencies, "ms: p50 (line) to p99")):
        axes.set_xscale("log", base=2)
        axes.set_yscale("log")
        axes.set_xlabel("clients")
        axes.set_ylabel(name)
        axes.grid(alpha=0.25)
    if kinds:
        rates.legend(frameon=False, fontsize=8)
    figure.savefig(path, dpi=150)


def _cells(row: LoadRow) -> list[str]:
    latency = row.latency_ms
    return [
        f"{row.models} {row.endpoint}",
        str(row.clients),
        f"{row.requests_per_s:,.1f}",
        *(("–",) * 3 if latency is None else map(_shown, (latency.p50, latency.p95, latency.p99))),
        "–" if row.overhead_ms is None else _shown(row.overhead_ms.p50),
        "–" if row.client_ms is None else _shown(row.client_ms),
        ", ".join(f"{count:,} × {what}" for what, count in row.errors.items()) or "0",
    ]


def _shown(ms: float) -> str:
    return f"{ms:,.1f}"

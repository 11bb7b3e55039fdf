"""Table and plot of a load test."""

from collections.abc import Iterator
from pathlib import Path

from rich.console import Console

from benchmarks.measurement.records import LoadRow, ServeRun
from benchmarks.measurement.tables import print_table

OWN_GOAL_MS = 1.0
"""Goal for the median latency over an idle server's with one client and the fakes."""
RATE_GOAL = 600.0
"""Goal for the requests per second of 16 clients with the fakes."""
TAIL_GOAL = 2.0
"""Goal for p99 / p50 of 64 clients with the fakes."""
FAKES = "scripted"

_COLOURS = ("#2563eb", "#d97706", "#0d9488", "#b91c1c")
_COLUMNS = ("clients", "per s", "p50", "p95", "p99", "own", "idle", "CPU", "errors")


def print_serve(run: ServeRun, console: Console) -> None:
    """Print every load, and whether the server meets its goals."""
    title = (
        f"requests with M = {run.candidates}, in ms; own: latency minus drawing and scoring, "
        "idle: a round trip to an idle server, CPU: the server's per request"
    )
    print_table(console, title, ("", *_COLUMNS), map(_cells, run.rows))
    for row in run.rows:
        for found in _goals(row):
            console.print(f"{row.models} {row.endpoint}: {found}", highlight=False)


def _goals(row: LoadRow) -> Iterator[str]:
    """Findings of a load of the fakes about the goal for its number of clients."""
    if row.models != FAKES:
        return
    if row.clients == 1 and row.own_ms is not None:
        kept = _kept(row.own_ms <= OWN_GOAL_MS)
        yield f"{row.own_ms:.2f} ms over an idle server at 1 client, goal {OWN_GOAL_MS:g}: {kept}"
    if row.clients == 16:
        kept = _kept(row.requests_per_s >= RATE_GOAL)
        yield f"{row.requests_per_s:,.0f} requests/s of 16 clients, goal {RATE_GOAL:g}: {kept}"
    if row.clients == 64 and row.latency_ms is not None:
        tail = row.latency_ms.p99 / row.latency_ms.p50
        kept = _kept(tail <= TAIL_GOAL)
        yield f"p99 / p50 of 64 clients is {tail:.2f}, goal {TAIL_GOAL:g}: {kept}"


def _kept(kept: bool) -> str:
    return "kept" if kept else "missed"


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
        "–" if row.server_cpu_ms is None else f"{row.server_cpu_ms:.2f}",
        ", ".join(f"{count:,} × {what}" for what, count in row.errors.items()) or "0",
    ]


def _shown(ms: float) -> str:
    return f"{ms:,.1f}"

"""Table and plot of success over episodes."""

from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import Path
from statistics import fmean
from typing import Any, Final

from rich.console import Console

from benchmarks.learning.records import CurveRow, CurveRun, LatencyRow, LatencyRun
from benchmarks.measurement.tables import print_table

BLOCK: Final = 25
"""Episodes of one point of the curves."""
WITHIN: Final = 200
"""Episodes within which it should have learned."""
_COLUMNS: Final = (
    "seed",
    "trial from",
    "guides from",
    "rolled back",
    "first 25",
    f"to {WITHIN}",
    "last 100",
    "unguided",
    "regret",
    "of unguided",
)
_COLOURS: Final = ("#2563eb", "#737373")


def print_curve(run: CurveRun, console: Console) -> None:
    """Print a row for each seed."""
    for (environment, agent), rows in by_agent(run.rows):
        print_table(console, f"{environment}, {agent}", _COLUMNS, cells_of(rows), left=0)


def by_agent(rows: Sequence[CurveRow]) -> Iterator[tuple[tuple[str, str], list[CurveRow]]]:
    """Rows of each environment and agent."""

    def key(row: CurveRow) -> tuple[str, str]:
        return row.environment, row.agent

    for found, some in groupby(sorted(rows, key=key), key):
        yield found, list(some)


def cells_of(rows: Sequence[CurveRow]) -> Iterator[tuple[str, ...]]:
    """A line for each seed of an agent, with mean outcomes and regret."""
    unguided = {row.seed: row for row in rows if not row.learns}
    for row in sorted((row for row in rows if row.learns), key=lambda row: row.seed):
        alone, count = unguided.get(row.seed), len(row.outcomes)
        guides = row.first("guiding")
        back = [c.episode for c in row.phases if guides and c.episode > guides and _back(c.phase)]
        yield (
            str(row.seed),
            _number(row.first("trial")),
            _number(guides),
            ", ".join(map(str, back)) or "–",
            _mean(row.outcomes[:BLOCK]),
            _mean(row.outcomes[WITHIN - BLOCK : WITHIN]),
            _mean(row.outcomes[-100:]),
            _mean(alone.outcomes) if alone else "–",
            f"{row.regret(count):.0f}",
            f"{row.regret(count) / alone.regret(count):.2f}" if alone else "–",
        )


def print_latency(run: LatencyRun, console: Console) -> None:
    """Print the latency of replies by part."""
    title = f"{run.environment}, ms of a reply: learning, plain"
    print_table(console, title, ("part", "replies", "p50", "p95", "ratio of p95"), map(_latencies, run.rows))


def _latencies(row: LatencyRow) -> tuple[str, ...]:
    on, off = row.learning, row.plain
    return (
        row.part,
        f"{on.replies}, {off.replies}",
        f"{on.p50_ms:.1f}, {off.p50_ms:.1f}",
        f"{on.p95_ms:.1f}, {off.p95_ms:.1f}",
        f"{row.p95_ratio:.2f}",
    )


def markdown(run: CurveRun) -> str:
    """The same tables in Markdown."""
    parts: list[str] = []
    for (environment, agent), rows in by_agent(run.rows):
        lines = [_line(_COLUMNS), _line(["---"] * len(_COLUMNS)), *map(_line, cells_of(rows))]
        parts += [f"## {environment}, the SDK of {agent}", "\n".join(lines)]
    return "\n\n".join(parts)


def plot_curve(run: CurveRun, path: Path) -> None:
    """Plot the mean outcome of each block of episodes, guided and not; thin lines are seeds."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib.figure import Figure

    found = list(by_agent(run.rows))
    figure = Figure(figsize=(4.5 * max(1, len(found)), 3.4), layout="constrained")
    panels = figure.subplots(1, max(1, len(found)), squeeze=False)[0]
    for axes, ((environment, agent), rows) in zip(panels, found, strict=False):
        axes.set_title(f"{environment}, SDK of {agent}", fontsize=10)
        for learns, colour in zip((True, False), _COLOURS, strict=True):
            _draw(axes, [row for row in rows if row.learns == learns], colour)
        axes.set_xlabel("episodes")
        axes.set_ylim(0, 1)
        axes.grid(alpha=0.25)
    panels[0].set_ylabel(f"mean outcome of {BLOCK}")
    panels[0].legend(frameon=False, fontsize=8)
    figure.savefig(path, dpi=100)


def _draw(axes: Any, rows: Sequence[CurveRow], colour: str) -> None:
    curves = [row.means(BLOCK) for row in rows]
    for curve in curves:
        axes.plot(_ends(curve), curve, color=colour, alpha=0.25, lw=0.8)
    if curves:
        mean = [fmean(block) for block in zip(*curves, strict=False)]
        label = "with --learn" if rows[0].learns else "without"
        axes.plot(_ends(mean), mean, color=colour, lw=2, label=label)
    for row in rows:
        if (guides := row.first("guiding")) is not None:
            axes.axvline(guides, color=colour, ls=":", lw=0.8)


def _ends(curve: Sequence[float]) -> list[int]:
    return [(number + 1) * BLOCK for number in range(len(curve))]


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _back(phase: str) -> bool:
    return phase == "collecting"


def _mean(outcomes: Sequence[float]) -> str:
    return f"{fmean(outcomes):.2f}" if outcomes else "–"


def _number(number: int | None) -> str:
    return "–" if number is None else str(number)

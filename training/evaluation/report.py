"""Report of an evaluation: tables on the terminal, and a plot of success against tokens."""

from collections.abc import Mapping
from colorsys import hls_to_rgb
from pathlib import Path
from zlib import crc32

from rich.console import Console
from rich.table import Table

from training.evaluation.records import EpisodeRow, MethodRow, MethodSummary, Results
from training.evaluation.results import Key, best_of_n_curve

_COLOURS = {
    "greedy": "#6b7280",
    "sample": "#9ca3af",
    "random-of-m": "#d97706",
    "random-distinct": "#ca8a04",
    "no-repeat": "#65a30d",
    "self-consistency": "#0d9488",
    "likeliest": "#7c3aed",
    "q-guided": "#2563eb",
    "q-posterior": "#1e3a8a",
    "adaptive": "#16a34a",
    "q-guided-aug": "#4338ca",
    "q-guided-n": "#a16207",
    "verifier-best-of-n": "#db2777",
    "q-beam": "#0ea5e9",
    "lats": "#0f766e",
    "reflexion": "#9333ea",
    "best-of-n": "#b91c1c",
    "best-of-n-aug": "#e11d48",
}


def colour_of(method: str) -> str:
    """Colour of a method in plots; one without an entry gets a fixed hue from its name."""
    hue = crc32(method.encode()) % 360 / 360
    derived = "#" + "".join(f"{round(255 * part):02x}" for part in hls_to_rgb(hue, 0.45, 0.6))
    return _COLOURS.get(method, derived)


def print_results(results: Results, console: Console) -> None:
    """Print the methods, their success by goal type, the comparisons and the failures."""
    console.print(_methods_table(results))
    console.print(_kinds_table(results))
    if results.comparisons:
        console.print(_comparisons_table(results))
    if results.failures:
        console.print(
            f"[red]{len(results.failures)} episodes could not be played[/red], the first: "
            f"{results.failures[0].error}",
            highlight=False,
        )
    console.print(
        "* chooses or goes on by the true reward, which a server does not know", highlight=False
    )


def _methods_table(results: Results) -> Table:
    table = Table(title=f"{results.tasks} tasks, seeds averaged")
    table.add_column("method", no_wrap=True)
    for name in (
        "success",
        "95 % (tasks)",
        "reward",
        "tokens each",
        "distinct",
        "invalid",
        "too long",
        "s each",
    ):
        table.add_column(name, justify="right", no_wrap=True)
    for summary in results.summary:
        rows = [row for row in results.rows if row.method == summary.method]
        table.add_row(_name(summary), *_cells(summary, rows))
    return table


def _cells(summary: MethodSummary, rows: list[MethodRow]) -> list[str]:
    episodes = sum(row.episodes for row in rows)
    return [
        f"{summary.success_rate:.1%}",
        f"{100 * summary.ci95[0]:.1f} to {100 * summary.ci95[1]:.1f}",
        f"{summary.mean_reward:.3f}",
        f"{summary.completion_tokens_per_episode:,.0f}",
        f"{sum(row.distinct_candidates_per_step for row in rows) / len(rows):.2f}",
        f"{sum(row.invalid_action_rate for row in rows) / len(rows):.1%}",
        f"{sum(row.too_long_episodes for row in rows)}",
        f"{sum(row.wall_time_s for row in rows) / episodes:.2f}",
    ]


def _kinds_table(results: Results) -> Table:
    table = Table(title="success by goal type")
    table.add_column("goal type")
    table.add_column("tasks", justify="right")
    for summary in results.summary:
        table.add_column(_name(summary), justify="right")
    for kind, tasks in results.kinds.items():
        rates = [summary.success_by_kind.get(kind) for summary in results.summary]
        cells = ["" if rate is None else f"{rate:.1%}" for rate in rates]
        table.add_row(kind, str(tasks), *cells)
    return table


def _comparisons_table(results: Results) -> Table:
    table = Table(title="q-guided against the others, paired by task and seed")
    for name in ("against", "difference", "95 % over tasks", "p", "tasks", "seeds"):
        table.add_column(name, justify="left" if name == "against" else "right")
    for row in results.comparisons:
        table.add_row(
            row.other,
            f"{100 * row.difference:+.1f} points",
            f"{100 * row.ci95[0]:+.1f} to {100 * row.ci95[1]:+.1f}",
            f"{row.p_value:.4f}",
            str(row.tasks),
            str(row.seeds),
        )
    return table


def _name(summary: MethodSummary) -> str:
    return summary.method + ("*" if summary.peeks else "")


def plot_success(results: Results, episodes: Mapping[Key, EpisodeRow], path: Path) -> None:
    """Plot success against completion tokens, as in QLASS figure 3, into the file `path`."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4.5), layout="constrained")
    axes = figure.add_subplot()
    if curve := best_of_n_curve(episodes):
        tokens, rates = zip(*curve, strict=True)
        axes.plot(tokens, [100 * r for r in rates], color=colour_of("best-of-n"), alpha=0.4, lw=1.5)
    for summary in results.summary:
        rate = 100 * summary.success_rate
        low, high = (100 * bound for bound in summary.ci95)
        axes.errorbar(
            summary.completion_tokens_per_episode,
            rate,
            yerr=[[max(0.0, rate - low)], [max(0.0, high - rate)]],
            fmt="o",
            capsize=3,
            color=colour_of(summary.method),
            label=summary.method + (" (peeks)" if summary.peeks else ""),
        )
    axes.set_xlabel("completion tokens per episode")
    axes.set_ylabel("success (%)")
    axes.set_ylim(-3, 103)
    axes.set_xlim(left=0)
    axes.grid(alpha=0.25)
    axes.legend(frameon=False)
    axes.set_title(f"{results.tasks} tasks, {_seeds(results)}; bars: 95 % over tasks", fontsize=10)
    figure.savefig(path, dpi=150)


def _seeds(results: Results) -> str:
    count = len({row.seed for row in results.rows})
    return "1 seed" if count == 1 else f"{count} seeds"

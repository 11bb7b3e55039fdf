"""Report of an evaluation: tables on the terminal, and a plot of success against tokens."""

from collections.abc import Mapping, Sequence
from colorsys import hls_to_rgb
from pathlib import Path
from zlib import crc32

from rich.console import Console
from rich.table import Table

from qguide.training.evaluation.records import (
    COMPARED,
    METHODS,
    Comparison,
    EpisodeRow,
    MethodName,
    MethodSummary,
    Results,
)
from qguide.training.evaluation.results import Key, best_of_n_curve

_WIDTH = 80
_BORDER = 3
"""Characters of a column beside its text."""

_SAME = 1e-9


def colour_of(method: MethodName) -> tuple[float, float, float]:
    """Colour of a method in plots: ours by hues in order, dark and light in turn; others paler, by their names."""
    if method not in METHODS:
        return hls_to_rgb(crc32(method.encode()) / 2**32, 0.5, 0.25)
    number = METHODS.index(method)
    return hls_to_rgb(number / len(METHODS), 0.35 + 0.2 * (number % 2), 0.7)


def print_results(results: Results, console: Console) -> None:
    """Print the methods, their success by goal type, the comparisons and the failures.

    No table is wider than 80 columns, as many terminals are, unless a name is.
    """
    console.print(_outcomes_table(results))
    console.print(_costs_table(results))
    for summaries in _side_by_side(results):
        console.print(_kinds_table(results, summaries))
    for method in COMPARED:
        if rows := [row for row in results.comparisons if row.method == method]:
            title = f"of {method} less that of the others"
            console.print(_comparisons_table(title, "against", {row.other: row for row in rows}))
    for baseline in dict.fromkeys(row.other for row in results.comparisons if row.method not in COMPARED):
        rows = [row for row in results.comparisons if row.other == baseline]
        console.print(_comparisons_table(f"less that of {baseline}", "method", {row.method: row for row in rows}))
    if results.failures:
        console.print(
            f"[red]{len(results.failures)} episodes could not be played[/red], the first: {results.failures[0].error}",
            highlight=False,
        )
    console.print("* chooses or goes on by the true reward, which a server does not know", highlight=False)


def _outcomes_table(results: Results) -> Table:
    """Success and reward; the reward first where it has more values than success."""
    success, reward = ("success", _success_cells), ("reward", _reward_cells)
    graded = any(abs(row.mean_reward - row.success_rate) > _SAME for row in results.rows)
    table = _table(f"{results.tasks} tasks, seeds averaged")
    columns = (reward, success) if graded else (success, reward)
    for name, _ in columns:
        table.add_column(name, justify="right", no_wrap=True)
        table.add_column("95 % (tasks)", justify="right", no_wrap=True)
    for summary in results.summary:
        table.add_row(_name(summary), *(cell for _, cells in columns for cell in cells(summary)))
    return table


def _success_cells(summary: MethodSummary) -> tuple[str, str]:
    low, high = summary.ci95
    return f"{summary.success_rate:.1%}", f"{100 * low:.1f} to {100 * high:.1f}"


def _reward_cells(summary: MethodSummary) -> tuple[str, str]:
    interval = summary.reward_ci95
    shown = "" if interval is None else f"{interval[0]:.3f} to {interval[1]:.3f}"
    return f"{summary.mean_reward:.3f}", shown


def _costs_table(results: Results) -> Table:
    table = _table("what they took")
    for name in ("tokens each", "distinct", "invalid", "too long", "s each"):
        table.add_column(name, justify="right", no_wrap=True)
    for summary in results.summary:
        rows = [row for row in results.rows if row.method == summary.method]
        episodes = sum(row.episodes for row in rows)
        table.add_row(
            _name(summary),
            f"{summary.completion_tokens_per_episode:,.0f}",
            f"{sum(row.distinct_candidates_per_step for row in rows) / len(rows):.2f}",
            f"{sum(row.invalid_action_rate for row in rows) / len(rows):.1%}",
            f"{sum(row.too_long_episodes for row in rows)}",
            f"{sum(row.wall_time_s for row in rows) / episodes:.2f}",
        )
    return table


def _table(title: str) -> Table:
    table = Table(title=title, title_justify="left")
    table.add_column("method", no_wrap=True)
    return table


def _side_by_side(results: Results) -> list[list[MethodSummary]]:
    beside = _WIDTH - max(map(len, (*results.kinds, "goal type"))) - len("tasks") - 2 * _BORDER - 1
    groups: list[list[MethodSummary]] = []
    left = 0
    for summary in results.summary:
        width = max(len(_name(summary)), len("100.0%")) + _BORDER
        if not groups or width > left:
            groups.append([])
            left = beside
        groups[-1].append(summary)
        left -= width
    return groups


def _kinds_table(results: Results, summaries: Sequence[MethodSummary]) -> Table:
    table = Table(title="success by goal type", title_justify="left")
    table.add_column("goal type", no_wrap=True)
    table.add_column("tasks", justify="right", no_wrap=True)
    for summary in summaries:
        table.add_column(_name(summary), justify="right", no_wrap=True)
    for kind, tasks in results.kinds.items():
        rates = [summary.success_by_kind.get(kind) for summary in summaries]
        cells = ["" if rate is None else f"{rate:.1%}" for rate in rates]
        table.add_row(kind, str(tasks), *cells)
    return table


def _comparisons_table(what: str, named: str, comparisons: Mapping[MethodName, Comparison]) -> Table:
    table = Table(title=f"mean reward {what}, paired by task and seed", title_justify="left")
    for name in (named, "difference", "95 % over tasks", "p", "tasks", "seeds"):
        table.add_column(name, justify="left" if name == named else "right")
    for method, row in comparisons.items():
        table.add_row(
            method,
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

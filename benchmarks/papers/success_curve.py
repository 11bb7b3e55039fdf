"""Plot success against completion tokens for evaluations that differ in M (QLASS figure 3).

    python -m benchmarks success-curve runs/m2 runs/m5 runs/m10 runs/m20 --output curve.png

reads the `results.json` of each evaluation; shows a table and draws one line per method.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from qguide.training.evaluation.records import MethodName, MethodSummary, Results, in_order
from qguide.training.evaluation.report import colour_of
from qguide.training.evaluation.results import read_results, require_comparable

MAY_DIFFER = frozenset({"output", "candidates", "methods", "inference", "parallel", "workers"})


@dataclass(frozen=True, slots=True)
class Point:
    """One method at one M.

    Attributes:
        invalid_rate: share of its actions that the environment did not understand.
    """

    candidates: int
    summary: MethodSummary
    invalid_rate: float


def run_success_curve(runs: Sequence[Path], output: Path, *, console: Console) -> dict[MethodName, list[Point]]:
    """Show and draw the curve of each method, and return its points in order of tokens."""
    results = [read_results(run) for run in runs]
    require_comparable(
        list(zip(runs, results, strict=True)),
        has_to_agree=lambda name: name not in MAY_DIFFER,
        remedy="name evaluations that differ in candidates only",
    )
    curves = _curves(results)
    console.print(_table(curves))
    _plot(curves, output)
    return curves


def _curves(results: Sequence[Results]) -> dict[MethodName, list[Point]]:
    curves: dict[MethodName, list[Point]] = defaultdict(list)
    for result in results:
        for summary in result.summary:
            rates = [r.invalid_action_rate for r in result.rows if r.method == summary.method]
            candidates = int(str(result.config["candidates"]))
            point = Point(candidates, summary, sum(rates) / len(rates))
            curves[summary.method].append(point)
    return {
        method: sorted(curves[method], key=lambda p: p.summary.completion_tokens_per_episode)
        for method in in_order(curves)
    }


def _table(curves: dict[MethodName, list[Point]]) -> Table:
    table = Table(title="success by M")
    for name in ("method", "M", "success", "95 % (tasks)", "tokens each", "invalid"):
        table.add_column(name, justify="left" if name == "method" else "right")
    for method, points in curves.items():
        for point in points:
            low, high = point.summary.ci95
            table.add_row(
                method,
                str(point.candidates),
                f"{point.summary.success_rate:.1%}",
                f"{100 * low:.1f} to {100 * high:.1f}",
                f"{point.summary.completion_tokens_per_episode:,.0f}",
                f"{point.invalid_rate:.1%}",
            )
    return table


def _plot(curves: dict[MethodName, list[Point]], path: Path) -> None:
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4.5), layout="constrained")
    axes = figure.add_subplot()
    for method, points in curves.items():
        tokens = [point.summary.completion_tokens_per_episode for point in points]
        rates = [100 * point.summary.success_rate for point in points]
        axes.plot(tokens, rates, marker="o", color=colour_of(method), label=method)
        for point, x, y in zip(points, tokens, rates, strict=True):
            axes.annotate(str(point.candidates), (x, y), xytext=(3, 3), textcoords="offset points")
    axes.set_xlabel("completion tokens per episode")
    axes.set_ylabel("success (%)")
    axes.set_xlim(left=0)
    axes.grid(alpha=0.25)
    axes.legend(frameon=False)
    axes.set_title("numbers: M", fontsize=10)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150)

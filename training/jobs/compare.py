"""Compare evaluations of different models on the same tasks, paired by task and seed.

    qguide compare runs/played/sft runs/played/rft runs/played/qnet --output table.json

reads `results.json` and `episodes.jsonl` of each evaluation. Every method of every evaluation is a
row of the table, and is compared with one method of the first evaluation.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table

from qguide.qnet.errors import ConfigError
from qguide.qnet.records import Row
from qguide.training.evaluation.records import Comparison, EpisodeRow, MethodName, MethodSummary, Results
from qguide.training.evaluation.results import (
    Key,
    PlayedMethod,
    compare_pair,
    condition,
    read_episodes,
    read_results,
    require_comparable,
)

SAME = ("environment", "seeds", "max_steps")
"""Fields of the configuration that make the episodes of two evaluations comparable."""


class ComparedRow(Row):
    """One method of one evaluation.

    Attributes:
        against: the comparison with the baseline, on the tasks that both played under every seed of
            the baseline's; None for the baseline itself, and if there are no such tasks.
    """

    run: str
    summary: MethodSummary
    against: Comparison | None


class ComparedEvaluations(Row):
    """The table of `qguide compare`.

    Attributes:
        method: the method of it that every row is compared with.
        conditions: the configuration that all evaluations share, without what changes their speed
            alone.
    """

    baseline: str
    method: MethodName
    conditions: dict[str, object]
    rows: tuple[ComparedRow, ...]


@dataclass(frozen=True, slots=True)
class _Evaluation:
    run: Path
    results: Results
    episodes: dict[Key, EpisodeRow]


def run_compare(runs: Sequence[Path], against: str, output: Path | None, *, console: Console) -> ComparedEvaluations:
    """Show the table, write it to `output` if that is a path, and return it."""
    evaluations = [_Evaluation(run, read_results(run), read_episodes(run)) for run in runs]
    first = evaluations[0]
    require_comparable(
        [(each.run, each.results) for each in evaluations],
        has_to_agree=lambda name: name in SAME,
        remedy="compare evaluations of the same tasks, seeds and step limit",
    )
    method = _method(first, against)
    table = ComparedEvaluations(
        baseline=str(first.run),
        method=method,
        conditions={name: condition(first.results, name) for name in SAME},
        rows=tuple(row for each in evaluations for row in _rows(each, first, method)),
    )
    if output is not None:
        output.parent.mkdir(parents=True, exist_ok=True)
        output.write_text(table.model_dump_json(indent=2) + "\n", encoding="utf-8")
    console.print(_shown(table))
    return table


def _method(first: _Evaluation, against: str) -> MethodName:
    played = [summary.method for summary in first.results.summary]
    for method in played:
        if method == against:
            return method
    raise ConfigError(f"{first.run} has no episodes of {against!r}; --against takes {', '.join(played)}")


def _rows(evaluation: _Evaluation, first: _Evaluation, method: MethodName) -> list[ComparedRow]:
    seeds = sorted({row.seed for row in first.results.rows})
    baseline = PlayedMethod(method, first.episodes)
    rows = []
    for summary in evaluation.results.summary:
        played = PlayedMethod(summary.method, evaluation.episodes)
        is_baseline = evaluation is first and summary.method == method
        against = None if is_baseline else compare_pair(played, baseline, seeds)
        rows.append(ComparedRow(run=str(evaluation.run), summary=summary, against=against))
    return rows


def _shown(table: ComparedEvaluations) -> Table:
    tasks = max(row.summary.tasks for row in table.rows)
    seeds = max(row.summary.seeds for row in table.rows)
    shown = Table(
        title=f"{tasks} tasks, {seeds} seeds; compared with {table.method} of {table.baseline}",
        caption="success in %, difference of reward in points over the paired tasks, with their 95 % over tasks",
        box=SIMPLE,
        padding=(0, 1, 0, 0),
    )
    # One column for both names: a terminal of 80 columns has no room for two that stay whole.
    shown.add_column("evaluation, method", overflow="fold")
    for name in ("success", "tokens", "paired", "difference", "p"):
        shown.add_column(name, justify="right", no_wrap=True)
    for row in table.rows:
        method = row.summary.method + ("*" if row.summary.peeks else "")
        shown.add_row(
            f"{Path(row.run).name} {method}",
            f"{100 * row.summary.success_rate:.1f} ({_interval(row.summary.ci95)})",
            f"{row.summary.completion_tokens_per_episode:,.0f}",
            *(_difference(row.against) if row.against else ()),
        )
    return shown


def _difference(against: Comparison) -> tuple[str, str, str]:
    difference = f"{100 * against.difference:+.1f} ({_interval(against.ci95)})"
    return str(against.tasks), difference, f"{against.p_value:.4f}"


def _interval(bounds: tuple[float, float]) -> str:
    return f"{100 * bounds[0]:.1f} to {100 * bounds[1]:.1f}"

"""Tables of the report, for the terminal and for HTML."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeVar

from qguide.training.guidance_report.schema import (
    ActionFigures,
    Agreement,
    Arm,
    Bin,
    GuidanceReport,
    Interval,
    RareValue,
    Reliability,
    Shadowed,
    StepRange,
    TauEstimate,
    TrialFigures,
)

NOTHING: Final = "–"
T = TypeVar("T")
Columns = Mapping[str, Callable[[T], str]]
"""The text of each column, by its name."""


def count_text(value: int) -> str:
    """A number of things."""
    return f"{value:,}"


def number_text(value: float | None) -> str:
    """Three digits, or all digits of what is large."""
    if value is None:
        return NOTHING
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def signed_text(value: float | None) -> str:
    """A difference, with its sign."""
    return NOTHING if value is None else f"{value:+.3g}"


def share_text(value: float | None) -> str:
    """A share in per cent."""
    return NOTHING if value is None else f"{100 * value:.1f} %"


def interval_text(interval: Interval | None) -> str:
    """Both bounds."""
    return NOTHING if interval is None else f"{interval[0]:.3g} to {interval[1]:.3g}"


@dataclass(frozen=True, slots=True)
class ReportTable:
    """A table of texts; the first column has the names of the rows."""

    title: str
    names: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


def detail_tables(report: GuidanceReport) -> list[ReportTable]:
    """The tables behind those of arms and of reliability; without those that would be empty."""
    tables = [
        trials_table(report.trials),
        shadows_table(report.shadows),
        agreement_table(report.agreement),
        other_taus_table(report.other_taus),
        actions_table(report.actions),
        rare_values_table(report.rare_values),
        steps_table(report.by_step),
    ]
    return [table for table in tables if table.rows]


def _table(title: str, found: Sequence[T], columns: Columns[T]) -> ReportTable:
    """One row for each thing that was found."""
    rows = tuple(tuple(text(one) for text in columns.values()) for one in found)
    return ReportTable(title, tuple(columns), rows)


def arms_table(title: str, arms: Sequence[Arm]) -> ReportTable:
    """One row for each arm."""
    columns: Columns[Arm] = {
        "arm": lambda arm: arm.name,
        "episodes": lambda arm: count_text(arm.episodes),
        "tasks": lambda arm: count_text(arm.tasks),
        "outcome": lambda arm: number_text(arm.mean_outcome),
        "95 %": lambda arm: interval_text(arm.ci95),
        "steps": lambda arm: number_text(arm.mean_steps),
        "tokens": lambda arm: number_text(arm.tokens.mean),
        "ms": lambda arm: number_text(arm.ms.mean),
        "ms, 95th": lambda arm: number_text(arm.ms.p95),
    }
    return _table(title, arms, columns)


def reliability_table(found: Reliability) -> ReportTable:
    """One row for each bin of Q."""
    columns: Columns[Bin] = {
        "mean Q": lambda part: number_text(part.mean_q),
        "mean outcome": lambda part: number_text(part.mean_outcome),
        "95 %": lambda part: interval_text(part.ci95),
        "steps": lambda part: count_text(part.steps),
    }
    return _table(f"Q of {found.q_model} against outcomes", found.bins, columns)


def agreement_table(found: Agreement) -> ReportTable:
    """One row for each figure of agreement."""
    changed = f"{number_text(found.changed_outcome)} ({found.changed:,} episodes)"
    unchanged = f"{number_text(found.unchanged_outcome)} ({found.unchanged:,} episodes)"
    outside = share_text(found.out_of_domain)
    most_frequent = share_text(found.argmax_is_most_frequent)
    rows = (
        ("steps with a choice by Q", f"{found.with_choice:,} of {found.steps:,}"),
        ("steps scored after a window of the history", f"{found.windows:,} of {found.steps:,}"),
        ("all draws equal, of steps with several", share_text(found.unanimous)),
        ("the highest Q is the first candidate's", share_text(found.argmax_is_first)),
        ("the same by chance", share_text(found.first_by_chance)),
        ("the highest Q is the most frequent candidate's", most_frequent),
        ("no Q chose: outside its domain, or no answer", share_text(found.fallback)),
        (f"outside its domain, of {found.domain_asked:,} steps with one", outside),
        ("Q of the chosen candidate over the first", signed_text(found.q_gain)),
        ("the agent took the chosen candidate", share_text(found.followed)),
        ("outcome where Q changed a step (not comparable with the next)", changed),
        ("outcome where Q changed none", unchanged),
    )
    return ReportTable("agreement", ("figure", "value"), rows)


def actions_table(found: Sequence[ActionFigures]) -> ReportTable:
    """One row for each Q model's action below its threshold."""
    columns: Columns[ActionFigures] = {
        "action": lambda one: f"{one.q_model}: {one.action}",
        "steps": lambda one: count_text(one.steps),
        "raised": lambda one: share_text(one.raised),
        "failed": lambda one: share_text(one.failed),
        "chosen": lambda one: share_text(one.chosen),
        "Q before": lambda one: number_text(one.q_before),
        "after": lambda one: number_text(one.q_after),
        "tokens": lambda one: number_text(one.tokens),
        "outcome": lambda one: number_text(one.mean_outcome),
    }
    return _table("below the threshold", found, columns)


def trials_table(found: Sequence[TrialFigures]) -> ReportTable:
    """One row for each trial of a server that learned."""
    rows = tuple(
        (
            str(one.trial),
            count_text(one.guided.episodes),
            number_text(one.guided.mean),
            count_text(one.unguided.episodes),
            number_text(one.unguided.mean),
            signed_text(one.difference),
            interval_text((one.low, one.high)),
            signed_text(one.guided.tokens - one.unguided.tokens),
        )
        for one in found
    )
    names = (
        "trial",
        "guided episodes",
        "outcome",
        "unguided episodes",
        "outcome",
        "difference",
        "95 %",
        "extra tokens",
    )
    return ReportTable("trials of learning, as GET /v1/learning tells them", names, rows)


def shadows_table(found: Sequence[Shadowed]) -> ReportTable:
    """One row for each arm and shadow."""
    columns: Columns[Shadowed] = {
        "arm": lambda one: f"{one.arm}, shadow {one.shadow}",
        "episodes": lambda one: count_text(one.episodes),
        "tasks": lambda one: count_text(one.tasks),
        "outcome": lambda one: number_text(one.mean_outcome),
        "ms": lambda one: number_text(one.ms.mean),
        "ms, 95th": lambda one: number_text(one.ms.p95),
    }
    return _table("under a shadow (counted in their arms, too)", found, columns)


def other_taus_table(found: Sequence[TauEstimate]) -> ReportTable:
    """One row for each Q model and temperature."""
    columns: Columns[TauEstimate] = {
        "choice by": lambda one: (
            f"{one.q_model}: {'votes alone' if one.tau is None else f'tau {one.tau:g}'}"
        ),
        "decisions": lambda one: count_text(one.decisions),
        "other choice": lambda one: count_text(one.changed),
        "its outcome known": lambda one: count_text(one.known),
        "difference": lambda one: signed_text(one.difference),
        "95 %": lambda one: interval_text(one.ci95),
    }
    return _table("estimate: other temperatures on recorded candidates", found, columns)


def rare_values_table(found: Sequence[RareValue]) -> ReportTable:
    """One row for each rarely tried value."""
    columns: Columns[RareValue] = {
        "value": lambda one: (
            f"{one.tool}{f' ({one.argument})' if one.argument else ''}: {one.value}"
        ),
        "episodes": lambda one: (
            f"{one.successes:,} successes of {one.episodes:,}" if one.episodes else "never tried"
        ),
        "offered, steps": lambda one: count_text(one.offered),
    }
    return _table("rarely tried", found, columns)


def steps_table(parts: Sequence[StepRange]) -> ReportTable:
    """One row for each range of depths."""
    columns: Columns[StepRange] = {
        "step": lambda part: part.depths,
        "steps": lambda part: count_text(part.steps),
        "with choice": lambda part: share_text(part.with_choice),
        "first chosen": lambda part: share_text(part.argmax_is_first),
        "Q gain": lambda part: signed_text(part.q_gain),
        "AUC": lambda part: number_text(part.auc),
        "tokens": lambda part: number_text(part.tokens.mean),
        "ms": lambda part: number_text(part.ms.mean),
    }
    return _table("by step", parts, columns)

"""Tables of the report, for the terminal and for HTML."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from qguide.training.guidance_report.schema import (
    ActionFigures,
    Agreement,
    Arm,
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


def arms_table(title: str, arms: Sequence[Arm]) -> ReportTable:
    """One row for each arm."""
    names = ("arm", "episodes", "tasks", "outcome", "95 %", "steps", "tokens", "ms", "ms, 95th")
    rows = tuple(
        (
            arm.name,
            count_text(arm.episodes),
            count_text(arm.tasks),
            number_text(arm.mean_outcome),
            interval_text(arm.ci95),
            number_text(arm.mean_steps),
            number_text(arm.tokens.mean),
            number_text(arm.ms.mean),
            number_text(arm.ms.p95),
        )
        for arm in arms
    )
    return ReportTable(title, names, rows)


def reliability_table(found: Reliability) -> ReportTable:
    """One row for each bin of Q."""
    rows = tuple(
        (
            number_text(part.mean_q),
            number_text(part.mean_outcome),
            interval_text(part.ci95),
            count_text(part.steps),
        )
        for part in found.bins
    )
    names = ("mean Q", "mean outcome", "95 %", "steps")
    return ReportTable(f"Q of {found.q_model} against outcomes", names, rows)


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
    names = (
        "action",
        "steps",
        "raised",
        "failed",
        "chosen",
        "Q before",
        "after",
        "tokens",
        "outcome",
    )
    rows = tuple(
        (
            f"{one.q_model}: {one.action}",
            count_text(one.steps),
            share_text(one.raised),
            share_text(one.failed),
            share_text(one.chosen),
            number_text(one.q_before),
            number_text(one.q_after),
            number_text(one.tokens),
            number_text(one.mean_outcome),
        )
        for one in found
    )
    return ReportTable("below the threshold", names, rows)


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
    rows = tuple(
        (
            f"{one.arm}, shadow {one.shadow}",
            count_text(one.episodes),
            count_text(one.tasks),
            number_text(one.mean_outcome),
            number_text(one.ms.mean),
            number_text(one.ms.p95),
        )
        for one in found
    )
    names = ("arm", "episodes", "tasks", "outcome", "ms", "ms, 95th")
    return ReportTable("under a shadow (counted in their arms, too)", names, rows)


def other_taus_table(found: Sequence[TauEstimate]) -> ReportTable:
    """One row for each Q model and temperature."""
    rows = tuple(
        (
            f"{one.q_model}: {'votes alone' if one.tau is None else f'tau {one.tau:g}'}",
            count_text(one.decisions),
            count_text(one.changed),
            count_text(one.known),
            signed_text(one.difference),
            interval_text(one.ci95),
        )
        for one in found
    )
    names = ("choice by", "decisions", "other choice", "its outcome known", "difference", "95 %")
    return ReportTable("estimate: other temperatures on recorded candidates", names, rows)


def rare_values_table(found: Sequence[RareValue]) -> ReportTable:
    """One row for each rarely tried value."""
    rows = tuple(
        (
            f"{one.tool}{f' ({one.argument})' if one.argument else ''}: {one.value}",
            f"{one.successes:,} successes of {one.episodes:,}" if one.episodes else "never tried",
            count_text(one.offered),
        )
        for one in found
    )
    return ReportTable("rarely tried", ("value", "episodes", "offered, steps"), rows)


def steps_table(parts: Sequence[StepRange]) -> ReportTable:
    """One row for each range of depths."""
    names = ("step", "steps", "with choice", "first chosen", "Q gain", "AUC", "tokens", "ms")
    rows = tuple(
        (
            part.depths,
            count_text(part.steps),
            share_text(part.with_choice),
            share_text(part.argmax_is_first),
            signed_text(part.q_gain),
            number_text(part.auc),
            number_text(part.tokens.mean),
            number_text(part.ms.mean),
        )
        for part in parts
    )
    return ReportTable("by step", names, rows)

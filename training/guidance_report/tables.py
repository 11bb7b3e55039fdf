"""The report as tables, each a template for every column, and as text in a terminal."""

from collections.abc import Sequence
from dataclasses import dataclass
from string import Formatter
from typing import Any, Final

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from qguide.training.guidance_report.schema import Arm, GuidanceReport, Reliability

NOTHING: Final = "–"


class _Texts(Formatter):
    """Templates whose figures have these specs; what is None is shown as a dash."""

    def format_field(self, value: Any, format_spec: str) -> Any:
        if value is None:
            return NOTHING
        match format_spec:
            case "count":  # a number of things
                return f"{value:,}"
            case "number":  # three digits, or all digits of what is large
                return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"
            case "signed":  # a difference
                return f"{value:+.3g}"
            case "share":
                return f"{100 * value:.1f} %"
            case "interval":
                return f"{value[0]:.3g} to {value[1]:.3g}"
        return super().format_field(value, format_spec)


_text = _Texts().format


@dataclass(frozen=True, slots=True)
class ReportTable:
    """A table of texts; the first column has the names of the rows."""

    title: str
    names: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


Columns = tuple[tuple[str, str], ...]
"""Name and template of each column; {0} is what the row is about."""

_ARMS: Final[Columns] = (
    ("arm", "{0.name}"),
    ("episodes", "{0.episodes:count}"),
    ("tasks", "{0.tasks:count}"),
    ("outcome", "{0.mean_outcome:number}"),
    ("95 %", "{0.ci95:interval}"),
    ("steps", "{0.mean_steps:number}"),
    ("tokens", "{0.tokens.mean:number}"),
    ("ms", "{0.ms.mean:number}"),
    ("ms, 95th", "{0.ms.p95:number}"),
)
_RELIABILITY: Final[Columns] = (
    ("mean Q", "{0.mean_q:number}"),
    ("mean outcome", "{0.mean_outcome:number}"),
    ("95 %", "{0.ci95:interval}"),
    ("steps", "{0.steps:count}"),
)
_TRIALS: Final[Columns] = (
    ("trial", "{0.name}"),
    ("guided episodes", "{0.guided.episodes:count}"),
    ("outcome", "{0.guided.mean:number}"),
    ("unguided episodes", "{0.unguided.episodes:count}"),
    ("outcome", "{0.unguided.mean:number}"),
    ("difference", "{0.difference:signed}"),
    ("95 %", "{0.low:.3g} to {0.high:.3g}"),
    ("extra tokens", "{0.extra_tokens:signed}"),
)
_SHADOWS: Final[Columns] = (
    ("arm", "{0.arm}, shadow {0.shadow}"),
    ("episodes", "{0.episodes:count}"),
    ("tasks", "{0.tasks:count}"),
    ("outcome", "{0.mean_outcome:number}"),
    ("ms", "{0.ms.mean:number}"),
    ("ms, 95th", "{0.ms.p95:number}"),
)
_AGREEMENT: Final[Columns] = (
    ("steps with a choice by Q", "{0.with_choice:count} of {0.steps:count}"),
    ("steps scored after a window of the history", "{0.windows:count} of {0.steps:count}"),
    ("all draws equal, of steps with several", "{0.unanimous:share}"),
    ("the highest Q is the first candidate's", "{0.argmax_is_first:share}"),
    ("the same by chance", "{0.first_by_chance:share}"),
    ("the highest Q is the most frequent candidate's", "{0.argmax_is_most_frequent:share}"),
    ("no Q chose: outside its domain, or no answer", "{0.fallback:share}"),
    ("outside its domain, of {0.domain_asked:count} steps with one", "{0.out_of_domain:share}"),
    ("Q of the chosen candidate over the first", "{0.q_gain:signed}"),
    ("the agent took the chosen candidate", "{0.followed:share}"),
    (
        "outcome where Q changed a step (not comparable with the next)",
        "{0.changed_outcome:number} ({0.changed:count} episodes)",
    ),
    ("outcome where Q changed none", "{0.unchanged_outcome:number} ({0.unchanged:count} episodes)"),
)
_OTHER_TAUS: Final[Columns] = (
    ("choice by", "{0.q_model}: {0.choice}"),
    ("decisions", "{0.decisions:count}"),
    ("other choice", "{0.changed:count}"),
    ("its outcome known", "{0.known:count}"),
    ("difference", "{0.difference:signed}"),
    ("95 %", "{0.ci95:interval}"),
)
_ACTIONS: Final[Columns] = (
    ("action", "{0.q_model}: {0.action}"),
    ("steps", "{0.steps:count}"),
    ("raised", "{0.raised:share}"),
    ("failed", "{0.failed:share}"),
    ("chosen", "{0.chosen:share}"),
    ("Q before", "{0.q_before:number}"),
    ("after", "{0.q_after:number}"),
    ("tokens", "{0.tokens:number}"),
    ("outcome", "{0.mean_outcome:number}"),
)
_CRITERIA: Final[Columns] = (
    ("criterion", "{0.q_model}: {0.criterion}"),
    ("episodes", "{0.episodes:count}"),
    ("effect on the outcome", "{0.effect:signed}"),
    ("95 %", "{0.ci95:interval}"),
    ("weight", "{0.weight:number}"),
)
_RARE_VALUES: Final[Columns] = (
    ("value", "{0.place}: {0.value}"),
    ("episodes", "{0.tried}"),
    ("offered, steps", "{0.offered:count}"),
)
_STEPS: Final[Columns] = (
    ("step", "{0.depths}"),
    ("steps", "{0.steps:count}"),
    ("with choice", "{0.with_choice:share}"),
    ("first chosen", "{0.argmax_is_first:share}"),
    ("Q gain", "{0.q_gain:signed}"),
    ("AUC", "{0.auc:number}"),
    ("tokens", "{0.tokens.mean:number}"),
    ("ms", "{0.ms.mean:number}"),
)


def arms_table(title: str, arms: Sequence[Arm]) -> ReportTable:
    """One row for each arm."""
    return _table(title, arms, _ARMS)


def reliability_table(found: Reliability) -> ReportTable:
    """One row for each bin of Q."""
    return _table(f"Q of {found.q_model} against outcomes", found.bins, _RELIABILITY)


def detail_tables(report: GuidanceReport) -> list[ReportTable]:
    """The tables behind those of arms and of reliability; without those that would be empty."""
    agreement = tuple((_text(name, report.agreement), _text(figure, report.agreement)) for name, figure in _AGREEMENT)
    tables = [
        _table("trials of learning, as GET /v1/learning tells them", report.trials, _TRIALS),
        _table("under a shadow (counted in their arms, too)", report.shadows, _SHADOWS),
        ReportTable("agreement", ("figure", "value"), agreement),
        _table("estimate: other temperatures on recorded candidates", report.other_taus, _OTHER_TAUS),
        _table("below the threshold", report.actions, _ACTIONS),
        _table("criteria of a judge", report.criteria, _CRITERIA),
        _table("rarely tried", report.rare_values, _RARE_VALUES),
        _table("by step", report.by_step, _STEPS),
    ]
    return [table for table in tables if table.rows]


def signed_text(value: float | None) -> str:
    """A difference, with its sign."""
    return _text("{0:signed}", value)


def _table(title: str, found: Sequence[object], columns: Columns) -> ReportTable:
    rows = tuple(tuple(_text(template, one) for _, template in columns) for one in found)
    return ReportTable(title, tuple(name for name, _ in columns), rows)


def print_report(report: GuidanceReport, console: Console) -> None:
    """Print the findings, then the tables."""
    _line(console, f"{report.episodes:,} episodes of {report.tasks:,} tasks, {report.steps:,} steps")
    if report.bad_rows:
        _line(console, f"rows left out: {report.bad_rows:,}")
        for message in report.bad_row_messages:
            _line(console, f"  {message}")
    _line(console, f"verdict: {report.verdict}")
    for sentence in report.sentences:
        _line(console, f"• {sentence}")
    tables = [
        arms_table("arms", report.arms),
        *(arms_table(environment.name, environment.arms) for environment in report.environments),
        *map(reliability_table, report.reliability),
        *detail_tables(report),
    ]
    for table in tables:
        console.print(_rich(table))


def _line(console: Console, text: str) -> None:
    console.print(text, markup=False, highlight=False, soft_wrap=True)


def _rich(table: ReportTable) -> Table:
    shown = Table(title=escape(table.title), title_justify="left", box=SIMPLE_HEAD, padding=0, pad_edge=False)
    for number, name in enumerate(table.names):
        shown.add_column(name, justify="right" if number else "left", overflow="fold")
    for row in table.rows:
        shown.add_row(*map(escape, row))
    return shown

"""Report of an import: figures, and advice on what to collect next."""

from array import array
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from qguide.qnet.records import Row
from qguide.training.recordings.episode import BadRecord

MOST_SHOWN: Final = 20
"""Bad records that are named; the others are counted."""
_FEW_GROUPS: Final = 50
"""Below this many sibling groups that differ, collecting more is advised."""


class ImportReport(Row):
    """Figures of an import.

    Attributes:
        skipped: records that hold no episode.
        bad_records: the first of them, by line and reason.
        left_out: what was left out of the episodes, and how often it was there.
        tasks_with_one_episode: those of which nothing can be compared.
        split_tasks: tasks whose episodes open with different messages, so that they share no state.
        states: distinct states in which an action was taken.
        branching_states: states with at least two different actions; they hold a sibling group.
        differing_groups: sibling groups whose actions have different best outcomes.
        repeated_episodes: episodes equal to another one.
        contained_episodes: episodes that another one continues.
        disagreeing_episodes: groups of equal episodes with different rewards.
        uncertain_states: states in which one action had different observations.
    """

    files: int
    episodes: int
    skipped: int
    bad_records: tuple[str, ...]
    left_out: dict[str, int]
    tasks: int
    tasks_with_one_episode: int
    split_tasks: int
    actions: int
    tool_calls: int
    reward_min: float
    reward_mean: float
    reward_max: float
    states: int
    branching_states: int
    differing_groups: int
    repeated_episodes: int
    contained_episodes: int
    disagreeing_episodes: int
    uncertain_states: int
    advice: tuple[str, ...] = ()


@dataclass(slots=True)
class ImportTally:
    """Running figures of an import.

    Attributes:
        counts: the report's other numbers, by their names.
    """

    files: int = 0
    skipped: int = 0
    rewards: "array[float]" = field(default_factory=lambda: array("d"))
    bad: list[str] = field(default_factory=list)
    left_out: Counter[str] = field(default_factory=Counter)
    counts: Counter[str] = field(default_factory=Counter)

    def add_bad(self, record: BadRecord) -> None:
        """Count a bad record, and name it if it is one of the first."""
        self.skipped += 1
        if len(self.bad) < MOST_SHOWN:
            self.bad.append(str(record))

    def add_task(self, trees: Sequence[Counter[str]]) -> None:
        """Count the figures of the trees of one task."""
        self.counts["tasks"] += 1
        self.counts["tasks_with_one_episode"] += sum(figures["episodes"] for figures in trees) == 1
        self.counts["split_tasks"] += len(trees) > 1
        for figures in trees:
            self.counts.update(figures)

    def report(self) -> ImportReport:
        """The report, with its advice."""
        rewards = self.rewards
        figures = {
            **self.counts,
            "files": self.files,
            "skipped": self.skipped,
            "bad_records": tuple(self.bad),
            "left_out": dict(self.left_out.most_common()),
            "reward_min": min(rewards),
            "reward_mean": sum(rewards) / len(rewards),
            "reward_max": max(rewards),
        }
        report = ImportReport.model_validate(figures)
        return report.model_copy(update={"advice": tuple(_advice(report))})


def show_report(report: ImportReport, console: Console) -> None:
    """Print the report as a table, followed by the advice."""
    table = Table("figure", "value", title="import")
    for name, value in report.model_dump(exclude={"advice", "bad_records", "left_out"}).items():
        shown = f"{value:,.4g}" if isinstance(value, float) else f"{value:,}"
        table.add_row(name.replace("_", " "), shown)
    console.print(table)
    for what, count in report.left_out.items():
        console.print(f"• left out: {count:,} × {escape(what)}", highlight=False)
    for line in report.advice:
        console.print(f"• {escape(line)}", highlight=False)


def _advice(report: ImportReport) -> Iterable[str]:
    """Plain sentences with figures; none if nothing is amiss."""
    branching, states = report.branching_states, report.states
    if report.tasks_with_one_episode:
        yield (
            f"{report.tasks_with_one_episode} of {report.tasks} tasks have one episode, with which "
            "nothing can be compared: record several episodes of each task, under the same task id."
        )
    if report.split_tasks:
        yield (
            f"{report.split_tasks} of {report.tasks} tasks have episodes that open with different "
            "messages, so that they share no state: keep dates, names and other changing text out "
            "of the first messages."
        )
    if report.reward_min == report.reward_max:
        yield (
            f"All {report.episodes} episodes have the reward {report.reward_min:g}: a Q model "
            "learns from differences, so record failures as well as successes."
        )
    if report.differing_groups < _FEW_GROUPS:
        remedy = (
            "record more tasks."
            if 2 * report.differing_groups > branching >= states / 2
            else "draw several episodes per task at a temperature above 0, or let the server draw "
            "several candidates (num_candidates) in its episodes."
        )
        yield (
            f"{branching} of {states} states branch, and {report.differing_groups} of these "
            f"sibling groups differ in outcome, fewer than {_FEW_GROUPS}: {remedy}"
        )
    elif report.differing_groups < branching / 2:
        yield (
            f"{report.differing_groups} of {branching} sibling groups differ in outcome: a finer "
            "reward, or tasks on which the agent sometimes succeeds, make more of them differ."
        )
    if report.uncertain_states:
        yield (
            f"In {report.uncertain_states} states the same action had different observations: the "
            "environment is not deterministic, or its observations hold changing text. Such an action is "
            "worth the mean of what followed, as often as it did."
        )
    if report.disagreeing_episodes:
        yield (
            f"{report.disagreeing_episodes} groups of equal episodes have different rewards, which "
            "were averaged: look at how the reward is given."
        )

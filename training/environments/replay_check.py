"""Self-check of an environment: the same actions, played twice on fresh episodes.

A branch of a tree is a fresh episode in which the actions before it are replayed, so it can be
trusted only if replays are equal. Equal replays of a few actions prove nothing about all others;
a branch that turns out to differ fails its task later.
"""

from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Final

from qguide.qnet.types import ToolCall
from qguide.training.environment import (
    Branching,
    Environment,
    SnapshotEnvironment,
    StepResult,
    take,
)
from qguide.training.environments.task_selection import SelectedSuite
from qguide.training.trajectory import Action

MEANINGLESS: Final = "juggle the moon"
MEANINGLESS_CALL: Final = ToolCall("juggle", '{"what": "moon"}')


@dataclass(frozen=True, slots=True)
class BranchingChoice:
    """The beginning of branches, and the reason for it."""

    branching: Branching
    reason: str


def choose_branching(suite: SelectedSuite) -> BranchingChoice:
    """The bundle's own way, or the one that the self-check finds for its first task."""
    bundle, task = suite.environment, suite.tasks[0]
    if bundle.branching != "auto":
        return BranchingChoice(bundle.branching, "the configuration says so")
    nothing: Action = MEANINGLESS_CALL if bundle.chat.tools else MEANINGLESS
    harmless = bundle.harmless if bundle.harmless is not None else nothing
    actions = bundle.probes or (harmless, nothing, harmless)
    difference = difference_of_replays(lambda: suite.make(task), actions)
    if not difference:
        return BranchingChoice("replay", f"{len(actions)} actions replayed equally")
    with closing(suite.make(task)) as environment:
        if isinstance(environment, SnapshotEnvironment):
            return BranchingChoice("snapshot", difference)
    return BranchingChoice("none", difference)


def difference_of_replays(make: Callable[[], Environment], actions: Sequence[Action]) -> str:
    """The first difference between two fresh episodes with the same actions; "" without any."""
    first, second = _played(make, actions), _played(make, actions)
    if first[0] != second[0]:
        return f"the same task starts by {first[0]!r} and by {second[0]!r}"
    for number, (one, other) in enumerate(zip(first[1], second[1], strict=False), start=1):
        if one != other:
            return f"after the same {number} actions, the answers are {one} and {other}"
    return ""


def _played(
    make: Callable[[], Environment], actions: Sequence[Action]
) -> tuple[str, list[StepResult]]:
    with closing(make()) as environment:
        start, results = environment.reset(), []
        for action in actions:
            results.append(take(environment, action))
            if results[-1].ended:
                break
        return start, results

"""Branches of one task: by replay, where a self-check finds replays equal, or by snapshots.

A branch of a tree is a fresh episode in which the actions before it are replayed, so it can be
trusted only if replays are equal. Equal replays of a few actions prove nothing about all others;
a branch that turns out to differ fails its task later.

Where replays differ, an environment that `SnapshotBranches` makes answers a path of actions that
was taken before from its records, and restores the snapshot of the last known state where the path
leaves them. So a replayed path is equal by construction, and exploration needs no code for it.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from itertools import cycle, islice
from typing import Any, Final

from qguide.qnet.errors import EnvironmentFailureError
from qguide.qnet.types import ToolCall
from qguide.training.environment import Branching, Environment, SnapshotEnvironment, StepResult, Task, take
from qguide.training.environments.registry import SelectedSuite
from qguide.training.trajectory import Action

_Path = tuple[Action, ...]


@dataclass(slots=True)
class SnapshotBranches:
    """Makes episodes of one task that share every state that one of them has reached.

    Attributes:
        make: makes a fresh episode with `snapshot` and `restore`.
    """

    make: Callable[[], Environment]
    _start: str | None = None
    _results: dict[_Path, StepResult] = field(default_factory=dict)
    _snapshots: dict[_Path, object] = field(default_factory=dict)

    def __call__(self) -> Environment:
        """An episode; several run side by side."""
        return _Branch(self)

    def start(self) -> str:
        """The first observation, the same for all episodes."""
        if self._start is None:
            engine = self.make()
            try:
                self._start = engine.reset()
                self._snapshots[()] = _with_snapshots(engine).snapshot()
            finally:
                engine.close()
        return self._start

    def known(self, path: _Path) -> StepResult | None:
        """The result of a path that was taken before."""
        return self._results.get(path)

    def at(self, path: _Path) -> Environment:
        """A fresh engine in the state after a path that was taken before."""
        engine = self.make()
        engine.reset()
        _with_snapshots(engine).restore(self._snapshots[path])
        return engine

    def keep(self, path: _Path, result: StepResult, engine: Environment) -> None:
        """Keep a new state."""
        self._results[path] = result
        if not result.ended:
            self._snapshots[path] = _with_snapshots(engine).snapshot()


class _Branch:
    """One episode; see `qguide.training.environment.ToolEnvironment`."""

    def __init__(self, branches: SnapshotBranches) -> None:
        self._branches = branches
        self._path: _Path | None = None
        self._engine: Environment | None = None

    def reset(self) -> str:
        """Start at the task's first observation."""
        self._path = ()
        return self._branches.start()

    def step(self, action: str) -> StepResult:
        """Take one action."""
        return self._take(action)

    def call(self, call: ToolCall) -> StepResult:
        """Call one tool."""
        return self._take(call)

    def close(self) -> None:
        """Let go of the engine; what was kept stays."""
        if self._engine is not None:
            self._engine.close()
        self._engine = None

    def _take(self, action: Action) -> StepResult:
        if self._path is None:
            raise EnvironmentFailureError(f"step({action!r}): no episode is running; reset first")
        before, self._path = self._path, (*self._path, action)
        known = self._branches.known(self._path)
        if known is not None:
            self.close()  # the engine, if there is one, is a state behind
            return known
        if self._engine is None:
            self._engine = self._branches.at(before)
        result = take(self._engine, action)
        self._branches.keep(self._path, result, self._engine)
        return result


def _with_snapshots(engine: Environment) -> SnapshotEnvironment:
    if isinstance(engine, SnapshotEnvironment):
        return engine
    kind: Any = type(engine)
    raise EnvironmentFailureError(f'{kind.__name__} has no snapshot and restore; add them, or set branching to "none"')


MOST_PROBES: Final = 8
"""Pairs of episodes that the self-check compares at most."""
PROBING_S: Final = 10.0
"""Time in seconds after which it begins no further pair."""
MEANINGLESS: Final = "juggle the moon"
MEANINGLESS_CALL: Final = ToolCall("juggle", '{"what": "moon"}')


@dataclass(frozen=True, slots=True)
class BranchingChoice:
    """The beginning of branches, and the reason for it."""

    branching: Branching
    reason: str


def choose_branching(suite: SelectedSuite) -> BranchingChoice:
    """The bundle's own way, or the one that the self-check finds for its first tasks.

    Where chance acts on one action in ten, one pair of equal episodes says little and eight say more.
    """
    bundle = suite.environment
    if bundle.branching != "auto":
        return BranchingChoice(bundle.branching, "the configuration says so")
    nothing: Action = MEANINGLESS_CALL if bundle.chat.tools else MEANINGLESS
    harmless = bundle.harmless if bundle.harmless is not None else nothing
    actions = bundle.probes or (harmless, nothing, harmless)
    compared = 0
    for task in _probed(suite.tasks):
        compared += 1
        if difference := difference_of_replays(partial(suite.make, task), actions):
            with closing(suite.make(task)) as environment:
                snapshots = isinstance(environment, SnapshotEnvironment)
            return BranchingChoice("snapshot" if snapshots else "none", difference)
    pairs = f"{compared} pair{'s' if compared > 1 else ''}"
    return BranchingChoice("replay", f"{len(actions)} actions replayed equally in {pairs} of episodes")


def _probed(tasks: Sequence[Task]) -> Iterator[Task]:
    """Different tasks as long as there are some and time is left; the first one in any case."""
    end = time.monotonic() + PROBING_S
    for number, task in enumerate(islice(cycle(tasks), MOST_PROBES)):
        if number and time.monotonic() > end:
            return
        yield task


def difference_of_replays(make: Callable[[], Environment], actions: Sequence[Action]) -> str:
    """The first difference between two fresh episodes with the same actions; "" without any."""
    first, second = _played(make, actions), _played(make, actions)
    if first[0] != second[0]:
        return f"the same task starts by {first[0]!r} and by {second[0]!r}"
    for number, (one, other) in enumerate(zip(first[1], second[1], strict=False), start=1):
        if one != other:
            return f"after the same {number} actions, the answers are {one} and {other}"
    return ""


def _played(make: Callable[[], Environment], actions: Sequence[Action]) -> tuple[str, list[StepResult]]:
    with closing(make()) as environment:
        start, results = environment.reset(), []
        for action in actions:
            results.append(take(environment, action))
            if results[-1].ended:
                break
        return start, results

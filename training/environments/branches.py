"""Branches of one task where replays differ: by snapshots of every state that was reached.

An environment that `SnapshotBranches` makes answers a path of actions that was taken before from
its records, and restores the snapshot of the last known state where the path leaves them. So a
replayed path is equal by construction, and exploration needs no code of its own for it.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from qguide.qnet.errors import EnvironmentFailureError
from qguide.qnet.types import ToolCall
from qguide.training.environment import Environment, SnapshotEnvironment, StepResult, take
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
    raise EnvironmentFailureError(
        f'{kind.__name__} has no snapshot and restore; add them, or set branching to "none"'
    )

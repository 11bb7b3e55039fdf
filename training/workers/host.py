"""The host of a worker: the suite of a job's environment, and its running episodes by number."""

import contextlib
import json
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from qguide.training.environment import (
    Environment,
    EnvironmentConfig,
    GoldSuite,
    SnapshotEnvironment,
    StepResult,
    ToolEnvironment,
    take,
)
from qguide.training.environments.registry import build_suite, environment_config
from qguide.training.trajectory import Action


@dataclass(frozen=True, slots=True)
class EnvironmentSpec:
    """The part of a job that a worker needs: its environment, folder and import paths."""

    environment: str
    folder: str
    paths: tuple[str, ...]


def spec_of(environment: EnvironmentConfig | None) -> EnvironmentSpec:
    """The spec of an environment, to be built elsewhere as this process would; None for workers without one."""
    return EnvironmentSpec(
        environment.model_dump_json() if environment else "", os.getcwd(), tuple(filter(None, sys.path))
    )


def enter(spec: EnvironmentSpec) -> None:
    """Let this process find what the job's process finds."""
    with contextlib.suppress(OSError):  # another machine may lack the folder
        os.chdir(spec.folder)
    sys.path += [path for path in spec.paths if path not in sys.path]


class EnvironmentHost:
    """The methods that a job calls."""

    def __init__(self, spec: EnvironmentSpec) -> None:
        enter(spec)
        self._suite = build_suite(environment_config(json.loads(spec.environment)))
        self._tasks = {task.id: task for task in self._suite.tasks}
        self._episodes: dict[int, Environment] = {}

    def ready(self) -> None:
        """The suite is built."""

    def abilities(self, task_id: str) -> tuple[bool, bool]:
        """True if a task's episode has tools, and if it has snapshots."""
        with contextlib.closing(self._suite.make(self._tasks[task_id])) as episode:
            return isinstance(episode, ToolEnvironment), isinstance(episode, SnapshotEnvironment)

    def reset(self, number: int, task_id: str) -> str:
        """Start an episode under a number of the job's choice."""
        self.close(number)
        episode = self._episodes[number] = self._suite.make(self._tasks[task_id])
        return episode.reset()

    def act(self, number: int, action: Action) -> StepResult:
        """Take an action or call a tool."""
        return take(self._episodes[number], action)

    def snapshot(self, number: int) -> Any:
        """The state of an episode."""
        episode = self._episodes[number]
        assert isinstance(episode, SnapshotEnvironment)
        return episode.snapshot()

    def restore(self, number: int, snapshot: Any) -> None:
        """Bring an episode that was just reset into a state."""
        episode = self._episodes[number]
        assert isinstance(episode, SnapshotEnvironment)
        episode.restore(snapshot)

    def gold_replies(self, task_id: str) -> Sequence[str]:
        """A task's solution on record."""
        assert isinstance(self._suite, GoldSuite)
        return list(self._suite.gold_replies(self._tasks[task_id]))

    def close(self, number: int) -> None:
        """End an episode; one that is not there is not missed."""
        episode = self._episodes.pop(number, None)
        if episode is not None:
            episode.close()

    def close_all(self) -> None:
        """End all episodes and the suite."""
        for number in list(self._episodes):
            self.close(number)
        self._suite.close()

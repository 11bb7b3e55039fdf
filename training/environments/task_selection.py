"""Selection of the tasks that a job plays, by the `[environment]` table of its file.

    [environment]
    name = "alfworld"
    games = "data/train"        # or: first_seed = 0, count = 20000 for generated games
    shuffle_seed = 0
    slice = "0:300"             # with the same seed, "300:1300" gives none of these tasks

A split is fixed by its seed and slice, or by a file of task ids.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

from qguide.qnet.errors import ConfigError
from qguide.training.environment import (
    Environment,
    EnvironmentBundle,
    EnvironmentConfig,
    GoldSuite,
    Suite,
    Task,
)
from qguide.training.environments.registry import build_suite, find_environment
from qguide.training.shipped import shipped_path


@dataclass(slots=True)
class SelectedSuite:
    """Selected tasks of a suite, and the bundle of their environment."""

    name: str
    tasks: Sequence[Task]
    suite: Suite
    environment: EnvironmentBundle[Any]

    def make(self, task: Task) -> Environment:
        """A fresh, single-use episode of `task`."""
        return self.suite.make(task)

    def require_gold(self) -> GoldSuite:
        """The suite, as one that knows solutions of its tasks."""
        if not isinstance(self.suite, GoldSuite):
            raise ConfigError(
                f"environment {self.environment.name!r} has no solutions on record; set player to "
                "'expert' or 'policy', or name an environment that has them"
            )
        return self.suite

    def close(self) -> None:
        """Stop worker processes; safe to call twice."""
        self.suite.close()


def build_selected_suite(config: EnvironmentConfig) -> SelectedSuite:
    """Build the suite that `config` describes, with the tasks that it selects, in their order."""
    suite = build_suite(config)
    tasks = select_tasks(
        suite.tasks,
        task_ids=read_task_ids(config.task_ids) if config.task_ids else None,
        shuffle_seed=config.shuffle_seed,
        cut=config.slice,
        limit=config.limit,
    )
    bundle = find_environment(config.name)
    if bundle.configure is not None:
        bundle = bundle.configure(config)
    return SelectedSuite(suite.name, tasks, suite, bundle)


def select_tasks(
    tasks: Sequence[Task],
    *,
    task_ids: Sequence[str] | None = None,
    shuffle_seed: int | None = None,
    cut: str = ":",
    limit: int | None = None,
) -> list[Task]:
    """Filter tasks by id, then shuffle, then slice, then thin out.

    Args:
        tasks: tasks in any order; once shuffled, the result depends only on their ids.
        task_ids: ids of the tasks to keep; None keeps all.
        shuffle_seed: None leaves the order as it is.
        cut: slice "first:end", counted from 0; either may be left out.
        limit: maximum number of tasks, spread evenly over the slice.
    """
    if task_ids is not None:
        tasks = _with_ids(tasks, task_ids)
    if shuffle_seed is not None:
        tasks = sorted(tasks, key=lambda task: task.id)
        Random(shuffle_seed).shuffle(tasks)
    first, end = (int(part) if part else None for part in cut.split(":"))
    selected = list(tasks[first:end])
    if not selected:
        raise ConfigError(
            f"slice {cut!r} selects none of {len(tasks)} tasks; choose one within 0:{len(tasks)}"
        )
    if limit is not None and limit < len(selected):
        selected = [selected[index * len(selected) // limit] for index in range(limit)]
    return selected


def _with_ids(tasks: Sequence[Task], task_ids: Sequence[str]) -> list[Task]:
    by_id = {task.id: task for task in tasks}
    missing = [task_id for task_id in task_ids if task_id not in by_id]
    if missing:
        raise ConfigError(
            f"{len(missing)} of {len(task_ids)} task ids are not among the {len(tasks)} tasks; "
            f"the first is {missing[0]!r}; check the list of ids and where the tasks come from"
        )
    return [by_id[task_id] for task_id in dict.fromkeys(task_ids)]


def read_task_ids(path: Path) -> list[str]:
    """Read a file of ids, one per line; empty lines and lines that start with # do not count."""
    try:
        lines = shipped_path(path).read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise ConfigError(f"task_ids = {path}: {error.strerror}; name a file of ids") from error
    return [line.strip() for line in lines if line.strip() and not line.startswith("#")]

"""Which tasks a job plays, and in which engine: the `[environment]` table of a job's file.

    [environment]
    name = "alfworld"
    games = "data/train"        # or: first_seed = 0, count = 20000 for generated games
    shuffle_seed = 0
    slice = "0:300"             # the same seed with "300:1300" gives tasks disjoint from these

Splits are pinned by the seed and the slice, or by a file of task ids.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from qnet.errors import ConfigError
from training.environment import Environment, Suite, Task
from training.environments.registry import SuiteSpec, build_suite

Slice = Annotated[str, Field(pattern=r"^\d*:\d*$")]


class EnvironmentConfig(BaseModel):
    """The tasks of a job.

    Attributes:
        name: "alfworld", or "fake" for smoke runs.
        engine: "python", or "textworld": ALFWorld's own, slow.
        games: folder of the game files; without it games are generated.
        first_seed: the first generated game.
        count: how many generated games.
        processes: of the textworld engine.
        task_ids: a file of ids, one per line; only these are played.
        shuffle_seed: shuffles the tasks before `slice` cuts; None keeps them sorted by id.
        slice: "first:end" of the tasks, counted from 0.
        limit: at most so many of what the slice leaves, spread evenly over it: over tasks
            sorted by id that is over the goal types too.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: Literal["alfworld", "fake"] = "alfworld"
    engine: Literal["python", "textworld"] = "python"
    games: Path | None = None
    first_seed: int = Field(default=0, ge=0)
    count: int = Field(default=100, ge=1)
    processes: int = Field(default=2, ge=1)
    task_ids: Path | None = None
    shuffle_seed: int | None = None
    slice: Slice = ":"
    limit: int | None = Field(default=None, ge=1)

    @property
    def threads(self) -> int:
        """Threads for `run_processes`: only a slow engine is worth them."""
        return 2 * self.processes if self.engine == "textworld" else 0


@dataclass(slots=True)
class SelectedSuite:
    """Some tasks of a suite; see `training.environments.base.Suite`."""

    name: str
    tasks: Sequence[Task]
    whole: Suite

    def make(self, task: Task) -> Environment:
        """A fresh, single-use episode of `task`."""
        return self.whole.make(task)

    def close(self) -> None:
        """Stop worker processes; safe to call twice."""
        self.whole.close()


def build_selected_suite(config: EnvironmentConfig) -> SelectedSuite:
    """The suite that `config` describes, with the tasks it selects in the order it gives them.

    Raises:
        ConfigError: no task is left, or a task id is not in the suite.
        InvalidGameError: a game file is malformed.
    """
    suite = build_suite(
        SuiteSpec(
            environment=config.name,
            games=config.games,
            engine=config.engine,
            limit=None if config.games else config.count,
            first_seed=config.first_seed,
            processes=config.processes,
        )
    )
    tasks = select_tasks(
        suite.tasks,
        task_ids=read_task_ids(config.task_ids) if config.task_ids else None,
        shuffle_seed=config.shuffle_seed,
        cut=config.slice,
        limit=config.limit,
    )
    return SelectedSuite(suite.name, tasks, suite)


def select_tasks(
    tasks: Sequence[Task],
    *,
    task_ids: Sequence[str] | None = None,
    shuffle_seed: int | None = None,
    cut: str = ":",
    limit: int | None = None,
) -> list[Task]:
    """Filter by id, then shuffle, then cut, then thin out.

    Args:
        tasks: in any order: the result depends on their ids alone if they are shuffled.
        task_ids: which to keep; None keeps all.
        shuffle_seed: None leaves the order as it is.
        cut: "first:end", counted from 0; either may be left out.
        limit: at most so many, spread evenly over the rest.

    Raises:
        ConfigError: an id names no task, or nothing is left.
    """
    if task_ids is not None:
        tasks = _with_ids(tasks, task_ids)
    if shuffle_seed is not None:
        tasks = sorted(tasks, key=lambda task: task.id)
        Random(shuffle_seed).shuffle(tasks)
    first, end = (int(part) if part else None for part in cut.split(":"))
    selected = list(tasks[first:end])
    if not selected:
        raise ConfigError(f"slice {cut!r} leaves none of {len(tasks)} tasks; choose another")
    if limit is not None and limit < len(selected):
        selected = [selected[index * len(selected) // limit] for index in range(limit)]
    return selected


def _with_ids(tasks: Sequence[Task], task_ids: Sequence[str]) -> list[Task]:
    by_id = {task.id: task for task in tasks}
    missing = [task_id for task_id in task_ids if task_id not in by_id]
    if missing:
        raise ConfigError(
            f"{len(missing)} of {len(task_ids)} task ids are not among the {len(tasks)} tasks, "
            f"the first is {missing[0]!r}; check the folder of games and the list of ids"
        )
    return [by_id[task_id] for task_id in dict.fromkeys(task_ids)]


def read_task_ids(path: Path) -> list[str]:
    """The ids in a file, one per line; empty lines and lines that begin with # are passed over.

    Raises:
        ConfigError: there is no such file.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise ConfigError(f"task_ids = {path}: {error.strerror}; name a file of ids") from error
    return [line.strip() for line in lines if line.strip() and not line.startswith("#")]

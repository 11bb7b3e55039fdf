"""ScienceWorld's tasks: variations listed in files, as the papers divide them."""

import json
from collections.abc import Collection, Mapping, Sequence
from importlib.resources import files
from typing import Final, Literal

from qguide.qnet.action_key import ACTION_PREFIX
from qguide.training.environment import Task
from qguide.training.environments.sciworld.episode import SciWorldEpisode
from qguide.training.environments.sciworld.simulator import SimulatorPool

Split = Literal["train", "validation", "test", "smoke"]
_FOLDER: Final = files("qguide.training.environments.sciworld")


class SciWorldSuite:
    """See `qguide.training.environment.GoldSuite`."""

    def __init__(
        self,
        split: Split,
        pool: SimulatorPool,
        *,
        kinds: Collection[str] = (),
        turns: int | None,
    ) -> None:
        """List the tasks; simulators are started when they are needed.

        Args:
            split: name of a file of tasks.
            kinds: the tasks' kinds; () for all.
            turns: actions after which every episode ends; None for the papers' limit of each task.
        """
        self.name = f"sciworld-{split}"
        self.tasks: Sequence[Task] = [
            task for task in split_tasks(split) if not kinds or task.kind in kinds
        ]
        self._pool = pool
        self._turns = turns
        self._limits = step_limits()

    def make(self, task: Task) -> SciWorldEpisode:
        """A fresh, single-use episode of `task`."""
        turns = self._turns if self._turns is not None else self._limits[task.kind]
        return SciWorldEpisode(self._pool, task.kind, int(task.source), turns)

    def gold_replies(self, task: Task) -> list[str]:
        """The simulator's own solution, without thoughts; it may be longer than the limit."""
        simulator = self._pool.acquire()
        try:
            world = simulator.open_world()
            actions = simulator.gold_actions(world, task.kind, int(task.source))
            simulator.close_world(world)
        finally:
            self._pool.release(simulator)
        return [f"{ACTION_PREFIX} {action}" for action in actions]

    def close(self) -> None:
        """Stop the simulators; safe to call twice."""
        self._pool.close()


def split_tasks(split: Split) -> list[Task]:
    """The tasks of a split, "NAME/VARIATION"."""
    text = _FOLDER.joinpath("splits", f"{split}.txt").read_text(encoding="utf-8")
    return [Task(line, *line.split("/")) for line in text.split()]


def step_limits() -> Mapping[str, int]:
    """The papers' limit of actions to each task."""
    limits: dict[str, int] = json.loads(_FOLDER.joinpath("limits.json").read_text(encoding="utf-8"))
    return limits

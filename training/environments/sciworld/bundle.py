"""ScienceWorld as the jobs know it: experiments of elementary school (Wang et al., 2022).

[environment]
name = "sciworld"
split = "train"        # or "validation", "test", "smoke"
"""

import json
from collections.abc import Collection, Mapping, Sequence
from importlib.resources import files
from typing import Any, Final, Literal

from pydantic import Field, field_validator

from qguide.qnet.chat_messages import ACTION_PREFIX
from qguide.qnet.errors import EnvironmentFailureError
from qguide.qnet.types import TaskMarker
from qguide.training.environment import EnvironmentBundle, EnvironmentConfig, StepResult, Task
from qguide.training.environments.sciworld.simulator import Simulator, SimulatorPool, find_simulator
from qguide.training.trajectory import ChatFormat

NOT_UNDERSTOOD: Final = "No known action matches that input."


class SciWorldEpisode:
    """See `qguide.training.environment.Environment`.

    The reward is the score, in [0, 1]: every part of the task that is done counts, also where the
    episode is cut off. A score below 0 says that the task is lost; it counts 0.
    """

    def __init__(self, pool: SimulatorPool, task: str, variation: int, turns: int) -> None:
        self._pool = pool
        self._task, self._variation, self._turns = task, variation, turns
        self._simulator: Simulator | None = None
        self._world: Any = None
        self._taken = 0
        self._over = False

    def reset(self) -> str:
        """Start the episode: the task, and what is seen."""
        if self._simulator is None:
            self._simulator = self._pool.acquire()
        if self._world is None:
            self._world = self._simulator.open_world()
        self._taken, self._over = 0, False
        return self._simulator.load(self._world, self._task, self._variation)

    def step(self, action: str) -> StepResult:
        """Take one action."""
        if self._simulator is None or self._world is None or self._over:
            raise EnvironmentFailureError(f"step({action!r}): no episode is running; reset first")
        answer = self._simulator.step(self._world, action.strip())
        self._taken += 1
        finished = answer.completed or answer.score < 0
        self._over = finished or self._taken >= self._turns
        return StepResult(
            answer.observation,
            min(1.0, max(0.0, answer.score)),
            terminated=finished,
            valid=answer.observation != NOT_UNDERSTOOD,
            truncated=self._over and not finished,
        )

    def close(self) -> None:
        """Give the world back; safe to call twice."""
        simulator, world = self._simulator, self._world
        self._simulator = self._world = None
        if simulator is not None:
            if world is not None:
                simulator.close_world(world)
            self._pool.release(simulator)


Split = Literal["train", "validation", "test", "smoke"]
_FOLDER: Final = files("qguide.training.environments.sciworld")


class SciWorldSuite:
    """See `qguide.training.environment.GoldSuite`."""

    def __init__(self, split: Split, pool: SimulatorPool, *, kinds: Collection[str] = (), turns: int | None) -> None:
        """List the tasks; simulators are started when they are needed."""
        self.name = f"sciworld-{split}"
        self.tasks: Sequence[Task] = [task for task in split_tasks(split) if not kinds or task.kind in kinds]
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


TASK_OPENING: Final = "Your task is to"
SYSTEM: Final = (
    "You do experiments in a house with a kitchen, a workshop, a greenhouse and other places. End "
    'each reply by one line "Action: …"; a thought may come before it. Actions are: look around, '
    "look at OBJECT, look in OBJECT, examine OBJECT, read OBJECT, inventory, go to PLACE, "
    "teleport to PLACE, open OBJECT, close OBJECT, activate OBJECT, deactivate OBJECT, "
    "use OBJECT on OBJECT, connect OBJECT to OBJECT, disconnect OBJECT, pick up OBJECT, "
    "put down OBJECT, move OBJECT to OBJECT, pour OBJECT in OBJECT, dunk OBJECT in OBJECT, "
    "mix OBJECT, eat OBJECT, flush OBJECT, wait1, wait and focus on OBJECT. Focus only on what the "
    "task asks for: a wrong focus loses the task. If a name is ambiguous, reply with the number of "
    "the one you mean."
)


class SciWorldConfig(EnvironmentConfig):
    """ScienceWorld's `[environment]` table.

    Attributes:
        split: the papers' train, validation or test tasks, or a few short ones of the train split.
        kinds: names of the kinds of tasks that are played, such as "find-plant"; () for all.
        turns: actions after which every episode ends; None for the papers' limit of each task.
        processes: number of simulators, and so of steps taken at the same time.
        heap_mb: memory of each simulator's heap; an open episode takes about 12 MB of it. If there
            are more episodes than fit, more simulators are started.
        episodes_per_process: number of episodes after which a simulator is replaced.
    """

    name: Literal["sciworld"] = "sciworld"
    split: Split = "smoke"
    kinds: tuple[str, ...] = ()
    turns: int | None = Field(default=None, ge=1)
    processes: int = Field(default=2, ge=1)
    heap_mb: int = Field(default=512, ge=128)
    episodes_per_process: int = Field(default=500, ge=1)

    @field_validator("kinds")
    @classmethod
    def _known_kinds(cls, kinds: tuple[str, ...]) -> tuple[str, ...]:
        known = step_limits()
        unknown = sorted(set(kinds).difference(known))
        if unknown:
            raise ValueError(f"there is no kind {', '.join(unknown)}; the kinds are {', '.join(sorted(known))}")
        return kinds

    @property
    def threads(self) -> int:
        """Number of environment calls that run in parallel."""
        return 2 * self.processes


def build_suite(config: SciWorldConfig) -> SciWorldSuite:
    """The tasks that `config` describes."""
    find_simulator()
    pool = SimulatorPool(
        processes=config.processes, heap_mb=config.heap_mb, episodes_per_process=config.episodes_per_process
    )
    return SciWorldSuite(config.split, pool, kinds=config.kinds, turns=config.turns)


SCIWORLD = EnvironmentBundle(
    name="sciworld",
    config=SciWorldConfig,
    build_suite=build_suite,
    chat=ChatFormat(SYSTEM),
    task_markers=(TaskMarker(TASK_OPENING),),
    void_observation=NOT_UNDERSTOOD,
    packages=("scienceworld",),
    harmless="inventory",
)

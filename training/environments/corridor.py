"""A corridor with a key and a door: a deterministic fake environment that needs no data.

The agent starts in one of a row of rooms, fetches a key if the door is locked, and opens the door.
Like a real environment, the corridor has goal types, invalid actions and an observation for each
action. Tests, demos and smoke runs play it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from qguide.qnet.errors import EnvironmentFailureError
from qguide.qnet.types import TaskMarker
from qguide.training.environment import EnvironmentBundle, NumberedConfig, StepResult, Task

TASK_OPENING = "Your task is to:"
NOTHING_HAPPENS = "Nothing happens."
ACTIONS = ("go left", "go right", "look", "take key", "open door")
_KINDS = ("reach_door", "fetch_key_then_reach_door")


@dataclass(frozen=True, slots=True)
class Corridor:
    """One layout; rooms are numbered from 1.

    Attributes:
        start, key, door: numbers of their rooms; key is None if the door is not locked.
    """

    rooms: int
    start: int
    door: int
    key: int | None = None

    @staticmethod
    def of_seed(seed: int) -> "Corridor":
        """The layout of a seed; layouts differ in length, places and goal."""
        rooms = 3 + seed % 4
        start = 1 + seed // 2 % rooms
        door = 1 + (start + seed // 3 % (rooms - 1)) % rooms
        key = 1 + (door + seed // 5 % (rooms - 1)) % rooms
        return Corridor(rooms, start, door, key if seed % 2 else None)

    @property
    def kind(self) -> str:
        """The goal type."""
        return _KINDS[self.key is not None]

    def solution(self) -> list[str]:
        """The shortest sequence of actions that wins."""
        if self.key is None:
            return [*self._walk(self.start, self.door), "open door"]
        to_key, to_door = self._walk(self.start, self.key), self._walk(self.key, self.door)
        return [*to_key, "take key", *to_door, "open door"]

    @staticmethod
    def _walk(here: int, there: int) -> list[str]:
        return ["go right" if there > here else "go left"] * abs(there - here)


class CorridorEnvironment:
    """One episode; see `qguide.training.environment.Environment`."""

    def __init__(self, corridor: Corridor) -> None:
        self._corridor = corridor
        self._room = corridor.start
        self._has_key = corridor.key is None
        self._running = False

    def reset(self) -> str:
        """Start the episode and describe the agent's room and task."""
        corridor = self._corridor
        self._room, self._has_key, self._running = corridor.start, corridor.key is None, True
        errand = "open the door" if self._has_key else "take the key and open the door"
        return f"You are in a corridor of {corridor.rooms} rooms. {self._describe()}\n\n{TASK_OPENING} {errand}."

    def step(self, action: str) -> StepResult:
        """Take "go left", "go right", "look", "take key" or "open door"."""
        if not self._running:
            raise EnvironmentFailureError(f"step({action!r}): no episode is running; reset first")
        observation = self._perform(action.strip())
        won = observation is not None and action.strip() == "open door"
        self._running = not won
        if observation is None:
            return StepResult(NOTHING_HAPPENS, 0.0, terminated=False, valid=False)
        return StepResult(observation, float(won), terminated=won)

    def close(self) -> None:
        """Do nothing: there are no resources to release."""

    def _perform(self, action: str) -> str | None:
        corridor = self._corridor
        match action:
            case "go left" if self._room > 1:
                self._room -= 1
            case "go right" if self._room < corridor.rooms:
                self._room += 1
            case "take key" if self._room == corridor.key and not self._has_key:
                self._has_key = True
                return "You pick up the key."
            case "open door" if self._room == corridor.door and self._has_key:
                return "You open the door."
            case "look":
                pass
            case _:
                return None
        return self._describe()

    def _describe(self) -> str:
        seen = []
        if self._room == self._corridor.key and not self._has_key:
            seen.append("a key")
        if self._room == self._corridor.door:
            seen.append("a door" if self._has_key else "a locked door")
        return f"You are in room {self._room}. You see {' and '.join(seen) or 'nothing'}."


class CorridorSuite:
    """Corridors of consecutive seeds; see `qguide.training.environment.Suite`."""

    name = "fake"

    def __init__(self, first_seed: int = 0, count: int = 20) -> None:
        """Make the tasks "corridor:SEED" of `count` seeds."""
        seeds = range(first_seed, first_seed + count)
        self.tasks: Sequence[Task] = [
            Task(f"corridor:{seed}", Corridor.of_seed(seed).kind, str(seed)) for seed in seeds
        ]

    def make(self, task: Task) -> CorridorEnvironment:
        """A fresh, single-use episode of `task`."""
        return CorridorEnvironment(Corridor.of_seed(int(task.source)))

    def close(self) -> None:
        """Do nothing: there are no processes to stop."""


class CorridorConfig(NumberedConfig):
    """The `[environment]` table of corridors."""

    name: Literal["fake"] = "fake"


def build_suite(config: CorridorConfig) -> CorridorSuite:
    """Build the corridors of `config.count` seeds."""
    return CorridorSuite(config.first_seed, config.count)


CORRIDOR = EnvironmentBundle(
    name="fake",
    config=CorridorConfig,
    build_suite=build_suite,
    task_markers=(TaskMarker(TASK_OPENING),),
    void_observation=NOTHING_HAPPENS,
    actions=lambda history: ACTIONS,
    harmless="look",
)

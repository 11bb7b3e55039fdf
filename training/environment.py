"""Environments: tasks, what an action does in one, and suites that list and play them."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Task:
    """One episode's starting point.

    Attributes:
        id: stable across machines, for example the game's path below its root.
        kind: the goal type, for example `pick_heat_then_place_in_recep`.
        source: where the environment finds it (a path, a seed), opaque to everyone else.
    """

    id: str
    kind: str
    source: str


@dataclass(frozen=True, slots=True)
class StepResult:
    """What one action did.

    Attributes:
        observation: what the agent reads next.
        reward: 0 until the end, the outcome reward in [0, 1] on the last step.
        terminated: the task is over (won, or lost for good).
        valid: False where the action meant nothing here ("Nothing happens.");
            for statistics only, the agent never sees it.
    """

    observation: str
    reward: float
    terminated: bool
    valid: bool = True


class Environment(Protocol):
    """A single-use episode. A branch is a new environment with the same actions replayed."""

    def reset(self) -> str:
        """The first observation: the task instruction and what is seen."""
        ...

    def step(self, action: str) -> StepResult:
        """Take one bare action ("go to desk 1").

        Raises:
            EnvironmentFailureError: the engine failed or the episode is over.
        """
        ...

    def close(self) -> None:
        """Give the engine's resources back; safe to call twice."""
        ...


class Suite(Protocol):
    """A list of tasks and the engine that plays them."""

    name: str
    tasks: Sequence[Task]

    def make(self, task: Task) -> Environment:
        """A fresh, single-use episode of `task`."""
        ...

    def close(self) -> None:
        """Stop worker processes; safe to call twice."""
        ...

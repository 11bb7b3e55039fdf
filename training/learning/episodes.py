"""Recorded episodes as decisions in order, each with its state and its action."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from qguide.qnet.types import History, Message
from qguide.training.data.trajectories import Trajectory
from qguide.training.trajectory import Drawn


@dataclass(frozen=True, slots=True)
class LearnedEpisode:
    """One episode and what it earned.

    Attributes:
        task: where tasks are held back, its episodes are never split between fitting and judging.
        states: the history before each action.
        drawn: the agent's different candidates before each action, none where they are unknown;
            empty if all are.
        rewards: outcome if the episode had ended after each action; empty if unknown.
        part_of: name of the played episode whose candidate this is; "" if it was played by itself.
    """

    task: str
    states: tuple[History, ...]
    actions: tuple[Message, ...]
    reward: float
    drawn: tuple[tuple[Drawn, ...], ...] = ()
    rewards: tuple[float, ...] = ()
    part_of: str = ""

    @property
    def earned(self) -> tuple[float, ...]:
        """Outcome if it had ended before each action; 0 where that is unknown."""
        before = self.rewards[:-1] or (0.0,) * (len(self.actions) - 1)
        return (0.0, *before)[: len(self.actions)]

    @property
    def choices(self) -> tuple[tuple[Drawn, ...], ...]:
        """The candidates before each action."""
        return self.drawn or ((),) * len(self.actions)


def episode_of(trajectory: Trajectory) -> LearnedEpisode:
    """The episode of a recorded trajectory; replies not to be imitated teach, too."""
    replies = trajectory.replies
    return LearnedEpisode(
        trajectory.task_id,
        tuple(trajectory.messages[:i] for i in replies),
        tuple(trajectory.messages[i] for i in replies),
        trajectory.reward,
        trajectory.drawn,
        trajectory.earned,
    )


HeldBack = Literal["tasks", "episodes"]
"""Units that are held back together: all episodes of a task, or each episode by itself."""


def played_of(episodes: Sequence[LearnedEpisode]) -> list[str]:
    """Name of the played episode that each one is, or is a candidate of."""
    return [episode.part_of or str(number) for number, episode in enumerate(episodes)]


def units_of(episodes: Sequence[LearnedEpisode], held_back: HeldBack) -> list[str]:
    """Name of the unit that each episode is held back with.

    Held-back tasks tell what a Q model is worth in new tasks. Where the same tasks come again, it
    may know them, and held-back episodes tell what that is worth.
    """
    if held_back == "tasks":
        return [episode.task for episode in episodes]
    return played_of(episodes)


def folds_of(units: Sequence[str], *, most: int = 5) -> list[int]:
    """Fold of each: units in turn, by their first appearance; at most one fold a unit."""
    number = {unit: i for i, unit in enumerate(dict.fromkeys(units))}
    return [number[unit] % min(most, len(number)) for unit in units]

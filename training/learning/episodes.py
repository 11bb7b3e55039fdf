"""Recorded episodes as decisions in order, each with its state and its action."""

from collections.abc import Sequence
from dataclasses import dataclass

from qguide.qnet.types import History, Message
from qguide.training.data.trajectories import Trajectory
from qguide.training.trajectory import Drawn


@dataclass(frozen=True, slots=True)
class Episode:
    """One episode and what it earned.

    Attributes:
        task: episodes of one task are never split between fitting and judging.
        states: the history before each action.
        actions: as many replies.
        reward: outcome reward at the end.
        drawn: the agent's different candidates before each action, none where they are unknown;
            empty if all are.
        rewards: outcome if the episode had ended after each action; empty if unknown.
    """

    task: str
    states: tuple[History, ...]
    actions: tuple[Message, ...]
    reward: float
    drawn: tuple[tuple[Drawn, ...], ...] = ()
    rewards: tuple[float, ...] = ()

    @property
    def earned(self) -> tuple[float, ...]:
        """Outcome if it had ended before each action; 0 where that is unknown."""
        before = self.rewards[:-1] or (0.0,) * (len(self.actions) - 1)
        return (0.0, *before)[: len(self.actions)]

    @property
    def choices(self) -> tuple[tuple[Drawn, ...], ...]:
        """The candidates before each action."""
        return self.drawn or ((),) * len(self.actions)


def episode_of(trajectory: Trajectory) -> Episode:
    """The episode of a recorded trajectory; replies not to be imitated teach, too."""
    replies = trajectory.replies
    return Episode(
        trajectory.task_id,
        tuple(trajectory.messages[:i] for i in replies),
        tuple(trajectory.messages[i] for i in replies),
        trajectory.reward,
        trajectory.drawn,
        trajectory.earned,
    )


def folds_of(tasks: Sequence[str], *, most: int = 5) -> list[int]:
    """Fold of each episode: tasks in turn, by their first appearance; at most one fold a task."""
    number = {task: i for i, task in enumerate(dict.fromkeys(tasks))}
    return [number[task] % min(most, len(number)) for task in tasks]

"""Recorded episodes as decisions in order, each with its state and its action."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from qnet.action_key import message_key
from qnet.types import History, Message
from training.data.records import TrajectoryRow, messages_of


@dataclass(frozen=True, slots=True)
class Episode:
    """One episode and what it earned.

    Attributes:
        task: episodes of one task are never split between fitting and judging.
        states: the history before each action.
        actions: as many replies.
        reward: outcome reward at the end.
    """

    task: str
    states: tuple[History, ...]
    actions: tuple[Message, ...]
    reward: float

    @property
    def effects(self) -> tuple[str, ...]:
        """The part that acts of each action."""
        return tuple(map(message_key, self.actions))


def episodes_of(rows: Iterable[TrajectoryRow]) -> list[Episode]:
    """The episodes of recorded trajectories; replies not to be imitated teach, too."""
    return [_episode(row.task_id, messages_of(row.messages), row.outcome_reward) for row in rows]


def _episode(task: str, messages: History, reward: float) -> Episode:
    replies = [i for i, message in enumerate(messages) if message.role == "assistant"]
    return Episode(
        task,
        tuple(messages[:i] for i in replies),
        tuple(messages[i] for i in replies),
        reward,
    )


def folds_of(tasks: Sequence[str], *, most: int = 5) -> list[int]:
    """Fold of each episode: tasks in turn, by their first appearance; at most one fold a task."""
    number = {task: i for i, task in enumerate(dict.fromkeys(tasks))}
    return [number[task] % min(most, len(number)) for task in tasks]

"""Replayed episodes, by which a method tries a reply in a state that it has left."""

from collections.abc import Callable, Sequence
from typing import Any

from qguide.qnet.errors import EnvironmentFailureError
from qguide.qnet.types import History, Message
from qguide.training.environment import Environment
from qguide.training.rollouts.episode import Episode, play_episode
from qguide.training.rollouts.rollout import RolloutTask
from qguide.training.trajectory import ChatFormat, Step


def replay(
    make: Callable[[], Environment], replies: Sequence[Message], *, chat: ChatFormat
) -> RolloutTask[Episode]:
    """An episode of these replies alone; none gives the first observation."""
    return play_episode(make, _silent, max_steps=len(replies), prefix=replies, chat=chat)


def try_reply(
    make: Callable[[], Environment], before: Sequence[Step], reply: Message, *, chat: ChatFormat
) -> RolloutTask[Step]:
    """Effect of a reply after some steps; a rollout task.

    Args:
        before: the steps, as they were played.
    """
    played: Episode = yield from replay(make, [*(s.message for s in before), reply], chat=chat)
    if list(played.steps[:-1]) != list(before):
        raise EnvironmentFailureError(
            f"a replayed episode differs after {len(before)} steps; methods that try before they "
            "choose need a deterministic environment"
        )
    return played.steps[-1]


def _silent(history: History, step: int) -> Any:
    raise AssertionError("a replay asks no agent")

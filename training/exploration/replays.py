"""Replayed episodes of one task: what they have in common, and what has to be the same."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from qguide.qnet.errors import EnvironmentFailureError
from qguide.qnet.types import History, Message, Sampling
from qguide.training.environment import Environment
from qguide.training.rollouts.episode import Episode, first_reply, play_episode
from qguide.training.rollouts.rollout import RolloutTask
from qguide.training.trajectory import REACT, ChatFormat, Step


def first_observation(make: Callable[[], Environment]) -> str:
    """The first observation of a fresh episode, which is closed again."""
    environment = make()
    try:
        return environment.reset()
    finally:
        environment.close()


def new_steps(episode: Episode, first: str, before: Sequence[Step]) -> tuple[Step, ...]:
    """The steps of an episode after those that it replayed.

    A tree adds rewards up along a path, so the outcome stands on the last step alone, also where
    an environment gives partial credit at every step.

    Args:
        episode: played from the state after `before`.
        first: the first observation when the task was first played.
        before: the replayed steps, as they were then.
    """
    _require_same(episode.first_observation, first, "at the start")
    for number, (now, then) in enumerate(zip(episode.steps, before, strict=False), start=1):
        _require_same(now.observation, then.observation, f"after {number} actions")
    own = episode.steps[len(before) :]
    return (*(replace(step, reward=0.0) for step in own[:-1]), *own[-1:])


def next_step(
    make: Callable[[], Environment],
    first: str,
    before: Sequence[Step],
    reply: Message,
    *,
    chat: ChatFormat = REACT,
) -> RolloutTask[Step]:
    """One more step of an episode that is replayed up to it; a rollout task.

    Args:
        first: the first observation when the task was first played.
        before: the steps to replay, none of which ended the episode.
        reply: the agent's reply after them.
    """
    prefix = [*(step.message for step in before), reply]
    draws_nothing = first_reply(lambda _: Sampling())
    episode = yield from play_episode(
        make, draws_nothing, max_steps=len(prefix), prefix=prefix, chat=chat
    )
    [step] = new_steps(episode, first, before)
    return step


def _require_same(now: str, before: str, when: str) -> None:
    if now != before:
        raise EnvironmentFailureError(
            f"a replayed episode differs {when}: {now!r} instead of {before!r}; branches need "
            "a deterministic environment, and an expert's trajectory of the same game"
        )


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

"""A task that can be played any number of times, and whose states are reached again by replays."""

from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Any

from qguide.qnet.errors import EnvironmentFailureError
from qguide.qnet.types import History, Message
from qguide.training.environment import Environment
from qguide.training.rollouts.episode import Agent, Episode, play_episode
from qguide.training.rollouts.rollout import EnvironmentCall, RolloutTask
from qguide.training.trajectory import REACT, ChatFormat, Step


class ReplayDiffersError(EnvironmentFailureError):
    """The same actions were answered in another way, so a branch would not start where it should."""

    def __init__(self, when: str, now: object, before: object) -> None:
        super().__init__(
            f"a replayed episode differs {when}: {now!r} instead of {before!r}; branches need a deterministic "
            'environment, or branching = "snapshot" or "none", and an expert\'s trajectory of the same game'
        )


@dataclass(frozen=True, slots=True)
class Game:
    """One task, and what playing it needs; its methods are rollout tasks.

    Attributes:
        make: makes a fresh, single-use episode, the same one every time.
        seeds: parts of the seeds of all draws: the job's seed and the task's id.
    """

    make: Callable[[], Environment]
    seeds: tuple[int | str, ...] = ()
    chat: ChatFormat = REACT

    def first(self) -> RolloutTask[str]:
        """The first observation of a fresh episode, which is closed again."""
        observation: str = yield EnvironmentCall(self.first_observation)
        return observation

    def first_observation(self) -> str:
        """The same outside a rollout task."""
        with closing(self.make()) as environment:
            return environment.reset()

    def play(self, agent: Agent, *, max_steps: int, prefix: Sequence[Message] = ()) -> RolloutTask[Episode]:
        """An agent's episode, after the replies of `prefix`."""
        return play_episode(self.make, agent, max_steps=max_steps, prefix=prefix, chat=self.chat)

    def play_on(
        self, first: str, before: Sequence[Step], agent: Agent, *, max_steps: int, replies: Sequence[Message] = ()
    ) -> RolloutTask[tuple[tuple[Step, ...], Episode]]:
        """The new steps of an agent from the state after some steps, and the whole episode."""
        prefix = [*(step.message for step in before), *replies]
        episode = yield from self.play(agent, max_steps=max_steps, prefix=prefix)
        return new_steps(episode, first, before, replies=len(replies)), episode

    def replay(self, replies: Sequence[Message]) -> RolloutTask[Episode]:
        """An episode of these replies alone; none gives the first observation."""
        return self.play(_silent, max_steps=len(replies), prefix=replies)

    def try_reply(self, first: str, before: Sequence[Step], reply: Message) -> RolloutTask[Step]:
        """The step of a reply after some steps, none of which ended the episode."""
        episode = yield from self.replay([*(step.message for step in before), reply])
        [step] = new_steps(episode, first, before, replies=1)
        return step


def new_steps(episode: Episode, first: str, before: Sequence[Step], *, replies: int = 0) -> tuple[Step, ...]:
    """The steps of an episode after those that it replayed.

    A tree adds rewards up along a path, so the outcome stands on the last step alone, also where
    an environment gives partial credit at every step.

    Args:
        replies: number of those that were given after the replayed steps.

    Raises:
        ReplayDiffersError: the episode is another one than before.
    """
    _require_same(episode.first_observation, first, "at the start")
    for number, (now, then) in enumerate(zip(episode.steps, before, strict=False), start=1):
        _require_same(now.observation, then.observation, f"after {number} actions")
    played = len(episode.steps)
    if played < len(before) + replies and episode.steps[-1].ended:
        raise ReplayDiffersError(f"after {played} actions", "the end of the episode", "more of it")
    own = episode.steps[len(before) :]
    return (*(replace(step, reward=0.0) for step in own[:-1]), *own[-1:])


def _require_same(now: str, before: str, when: str) -> None:
    if now != before:
        raise ReplayDiffersError(when, now, before)


def _silent(history: History, step: int) -> Any:
    raise AssertionError("a replay asks no agent")

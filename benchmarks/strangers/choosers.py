"""Agents that choose among M candidates, as rollout tasks; all see the same draws of a state.

The first of the M is the greedy reply, as the server draws it by default.

greedy      the likeliest reply
sample      one draw: the agent without guidance
told        any of the M draws, and its episodes tell all of them
random      any of the distinct candidates
votes       the candidate that was drawn most often
q           the one of highest Q
posterior   the one of highest Q / tau + log prior, for a scorer that brings a `tau`
oracle      peeks: tries each candidate in a copy, and goes on from there several times without
            guidance; the one with the best mean outcome
"""

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from random import Random
from statistics import fmean
from typing import Any, Final, Literal

from qguide.qnet.decision.selection import prior_of, select
from qguide.qnet.types import Candidate, History, Message, SampleRequest, Sampling, ScoreRequest
from qguide.training.environment import Task
from qguide.training.environments.registry import SelectedSuite
from qguide.training.rollouts.episode import Agent, AgentStep, Episode, derived_seed, first_reply, seeded
from qguide.training.rollouts.game import Game
from qguide.training.rollouts.rollout import ModelRequest, RolloutTask
from qguide.training.trajectory import drawn_of, reply_key

Chooser = Literal["greedy", "sample", "told", "random", "votes", "q", "posterior", "explore", "oracle"]
"""Names of the ways to choose; `explore` is `q` with a random candidate in some of the steps."""

DRAWN: Final = Sampling(temperature=1.0, max_tokens=None)
EXPLORED: Final = 0.3
"""Share of the steps of `explore` that take a random candidate."""


@dataclass(frozen=True, slots=True)
class Seat:
    """One game to play: a task of a suite, and what its draws depend on.

    Attributes:
        seed: parts of the seed, beside the task.
        candidates: M, the draws of a decision.
    """

    suite: SelectedSuite
    task: Task
    seed: tuple[object, ...]
    max_steps: int
    candidates: int

    @property
    def game(self) -> Game:
        """The task, to be played any number of times."""
        return Game(partial(self.suite.make, self.task), chat=self.suite.environment.chat)

    def play(self, choose: Agent, prefix: Sequence[Message] = ()) -> RolloutTask[Episode]:
        """Play to the end, from the state after the replies of `prefix`."""
        return self.game.play(choose, max_steps=self.max_steps, prefix=prefix)

    def sampling(self, *more: object) -> Callable[[int], Sampling]:
        """The sampling of each step, by its seed."""
        return seeded(DRAWN, *self.seed, self.task.id, *more)

    def choice(self, step: int) -> Sampling:
        """The sampling of the candidates of a step."""
        return replace(self.sampling()(step), first_greedy=True)


def play(
    seat: Seat, chooser: Chooser, *, tau: float | None = None, greedy_weight: float = 0.0, continuations: int = 10
) -> RolloutTask[Episode]:
    """One episode of a chooser.

    Args:
        seat: the game.
        chooser: how it is played.
        tau: temperature of the posterior.
        greedy_weight: of the greedy reply in its prior.
        continuations: of each candidate that the oracle tries.
    """
    match chooser:
        case "greedy":
            return seat.play(first_reply(lambda step: Sampling(temperature=0.0)))
        case "sample":
            return seat.play(first_reply(seat.sampling()))
        case "oracle":
            return _oracle(seat, continuations)
    return seat.play(_choosing(seat, chooser, tau, greedy_weight))


def _choosing(seat: Seat, chooser: Chooser, tau: float | None, greedy_weight: float) -> Agent:
    """The agent that draws M candidates and takes one of the distinct ones."""

    def choose(history: History, step: int) -> Generator[ModelRequest, Any, AgentStep]:
        drawn: list[Candidate] = yield SampleRequest(history, seat.candidates, seat.choice(step))
        messages, counts = distinct(drawn)
        chance = Random(derived_seed("choice", *seat.seed, seat.task.id, step))
        anything = chooser == "random" or (chooser == "explore" and chance.random() < EXPLORED)
        if len(messages) == 1:
            chosen = 0
        elif chooser == "told":
            chosen = chance.choices(range(len(messages)), weights=counts)[0]
        elif anything:
            chosen = chance.randrange(len(messages))
        elif chooser == "votes":
            chosen = counts.index(max(counts))
        else:
            scored = yield ScoreRequest(history, tuple(messages))
            prior = prior_of(messages, counts=counts, greedy=0, greedy_weight=greedy_weight)
            posterior = tau if chooser == "posterior" else None
            chosen = select(messages, scored.q_values, prior=prior, tau=posterior).chosen
        told = drawn_of([one.message for one in drawn], first_greedy=True)
        return AgentStep(messages[chosen], 0, len(messages), drawn=told)

    return choose


def distinct(drawn: Sequence[Candidate]) -> tuple[list[Message], list[int]]:
    """The candidates of different effect in the order of first appearance, and their votes."""
    votes: dict[str, int] = {}
    first: dict[str, Message] = {}
    for candidate in drawn:
        key = reply_key(candidate.message)
        votes[key] = votes.get(key, 0) + 1
        first.setdefault(key, candidate.message)
    return list(first.values()), list(votes.values())


def _oracle(seat: Seat, continuations: int) -> RolloutTask[Episode]:
    """The episode of the oracle; between candidates of equal outcome votes decide."""
    taken: list[Message] = []
    episode = yield from seat.game.replay(taken)
    while len(taken) < seat.max_steps and not (episode.steps and episode.steps[-1].ended):
        step = len(taken)
        request = SampleRequest(episode.messages, seat.candidates, seat.choice(step))
        messages, counts = distinct((yield request))
        values = [0.0]
        if len(messages) > 1:
            values = []
            for message in messages:
                value = yield from _value(seat, [*taken, message], continuations)
                values.append(value)
        best = max(range(len(messages)), key=lambda i: (values[i], counts[i]))
        taken.append(messages[best])
        episode = yield from seat.game.replay(taken)
    return episode


def _value(seat: Seat, replies: Sequence[Message], continuations: int) -> RolloutTask[float]:
    """Mean outcome after some replies, if the agent goes on without guidance."""
    outcomes = []
    for number in range(continuations):
        onward = first_reply(seat.sampling("onward", number))
        episode = yield from seat.play(onward, prefix=replies)
        outcomes.append(episode.reward)
        if len(episode.steps) == len(replies):
            break  # the last reply ended the episode
    return fmean(outcomes)

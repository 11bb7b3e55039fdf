"""The methods that are compared, as agents (QLASS, algorithm 4 and section 4.1).

An agent sees the history and what the models answer, nothing else: the guided agent cannot
look at the environment's reward, because no value of it ever reaches this code. Best-of-n is
the one method that peeks, after its trajectories are over, and is labelled so. Methods that try
before they choose, by the value that a Q model gives what came of it, are in `search`.

All methods but greedy and best-of-n derive their seeds from the same parts, so where their
histories agree they choose among the same candidates.
"""

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any

from qnet.decision.decide import Guidance
from qnet.decision.selection import TieBreak
from qnet.errors import ConfigError
from qnet.types import Candidate, History, Message, SampleRequest, Sampling
from training.rollouts.episode import (
    Agent,
    AgentStep,
    derived_seed,
    first_reply,
    guided_agent,
    seeded,
)
from training.rollouts.rollout import ModelRequest
from training.trajectory import action_key


@dataclass(frozen=True, slots=True)
class Play:
    """Options of an episode.

    Attributes:
        candidates: M, for every method that chooses among candidates.
        sampling: of the candidates; its seed is replaced at every step.
        greedy_candidate: the first of the M is the greedy one.
        tie_break: among replies of equal Q, the first drawn, the one drawn most often, or
            the one that the policy finds most likely.
        max_steps: actions after which an episode is cut off.
    """

    candidates: int = 5
    sampling: Sampling = field(default_factory=Sampling)
    greedy_candidate: bool = False
    tie_break: TieBreak = "first"
    max_steps: int = 40

    @property
    def drawing(self) -> Sampling:
        """Sampling of the M candidates of a step."""
        return replace(self.sampling, first_greedy=self.greedy_candidate)


def greedy(play: Play) -> Agent:
    """M = 1 at temperature 0."""
    return first_reply(lambda step: replace(play.sampling, temperature=0.0, seed=None))


def sample(play: Play, seed: int, task_id: str) -> Agent:
    """M = 1 at the sampling temperature."""
    return first_reply(seeded(play.sampling, seed, task_id))


def random_of_m(play: Play, seed: int, task_id: str) -> Agent:
    """One of the M drawn candidates at random, a reply drawn twice being twice as likely."""
    return _choosing(play, seed, task_id, lambda history, drawn, rng: rng.choice(drawn))


def random_distinct(play: Play, seed: int, task_id: str) -> Agent:
    """One of the different candidates at random: q-guided with a Q model that knows nothing.

    An argmax takes a reply that was drawn once as readily as one that was drawn four times, so
    this, and not `random_of_m`, is the null hypothesis for it.
    """
    return _choosing(play, seed, task_id, lambda history, drawn, rng: rng.choice(_distinct(drawn)))


def no_repeat(play: Play, seed: int, task_id: str, *, void_observation: str) -> Agent:
    """A random one of the different candidates, but none that has just failed word for word.

    Args:
        play: how episodes are played.
        seed: the job's.
        task_id: names the task in the seeds of its draws.
        void_observation: the environment's answer to an action that means nothing; "" where it has
            none, and then every candidate will do.
    """

    def pick(history: History, drawn: Sequence[Candidate], rng: Random) -> Candidate:
        failed = _failed_actions(history, void_observation)
        distinct_ones = _distinct(drawn)
        fresh = [c for c in distinct_ones if action_key(c.message.content) not in failed]
        return rng.choice(fresh or distinct_ones)

    return _choosing(play, seed, task_id, pick)


def self_consistency(play: Play, seed: int, task_id: str) -> Agent:
    """The most frequent action among M, whatever was thought; the earliest of equal ones.

    (Wang et al., 2023: self-consistency, with one action as the answer.)
    """

    def pick(history: History, drawn: Sequence[Candidate], rng: Random) -> Candidate:
        keys = [action_key(candidate.message.content) for candidate in drawn]
        return max(drawn, key=lambda c: keys.count(action_key(c.message.content)))

    return _choosing(play, seed, task_id, pick)


def likeliest(play: Play, seed: int, task_id: str) -> Agent:
    """The candidate that the policy finds most likely; the earliest of equal ones.

    Raises:
        ConfigError: (when asked) the policy does not say how likely its candidates are.
    """

    def pick(history: History, drawn: Sequence[Candidate], rng: Random) -> Candidate:
        return max(drawn, key=_logprob)

    return _choosing(play, seed, task_id, pick)


Pick = Callable[[History, Sequence[Candidate], Random], Candidate]
"""(history, all M candidates, a generator of its own) to the one that is taken."""


def _choosing(play: Play, seed: int, task_id: str, pick: Pick) -> Agent:
    """An agent that draws the candidates which q-guided draws, and asks no Q model."""
    sampling_at = seeded(play.drawing, seed, task_id)

    def choose(history: History, step: int) -> Generator[ModelRequest, Any, AgentStep]:
        candidates: list[Candidate] = yield SampleRequest(
            history, play.candidates, sampling_at(step)
        )
        rng = Random(derived_seed(seed, task_id, step, "pick"))
        return _choice(candidates, pick(history, candidates, rng).message)

    return choose


def _distinct(drawn: Sequence[Candidate]) -> list[Candidate]:
    """The first candidate of each message."""
    return list({candidate.message: candidate for candidate in reversed(drawn)}.values())[::-1]


def _failed_actions(history: History, void_observation: str) -> set[str]:
    """The actions since the last observation that was not void: here each would fail again."""
    failed: set[str] = set()
    for reply, observation in zip(history[-2::-2], history[::-2], strict=False):
        if not void_observation or observation.content.strip() != void_observation:
            break
        failed.add(action_key(reply.content))
    return failed


def _logprob(candidate: Candidate) -> float:
    if candidate.logprob is None:
        raise ConfigError(
            "the policy does not say how likely its candidates are; leave out `likeliest`, or "
            "take a policy that runs in this process"
        )
    return candidate.logprob


def q_guided(play: Play, seed: int, task_id: str) -> Agent:
    """The candidate of highest Q among the different ones of M (QLASS, algorithm 4).

    The decision is the server's (`qnet.decision.decide`): a step whose candidates are all the same
    needs no Q and is not scored.
    """
    sampling_at = seeded(play.drawing, seed, task_id)
    return guided_agent(
        lambda step: Guidance(play.candidates, sampling_at(step), tie_break=play.tie_break)
    )


def _choice(candidates: Sequence[Candidate], chosen: Message) -> AgentStep:
    return AgentStep(
        reply=chosen.content,
        completion_tokens=sum(candidate.completion_tokens for candidate in candidates),
        distinct_candidates=len({candidate.message for candidate in candidates}),
    )

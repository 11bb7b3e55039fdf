"""The methods that are compared, as agents (QLASS, algorithm 4 and section 4.1).

An agent sees the history and what the models answer, nothing else: the guided agent cannot
look at the environment's reward, because no value of it ever reaches this code. Best-of-n is
the one method that peeks, after its trajectories are over, and is labelled so.

q-guided, random-of-m and sample derive their seeds from the same parts, so where their
histories agree they choose among the same candidates.
"""

from collections.abc import Generator, Sequence
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any

from qnet.decision.decide import Guidance
from qnet.decision.selection import TieBreak
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


@dataclass(frozen=True, slots=True)
class Play:
    """How episodes are played.

    Attributes:
        candidates: M, for q-guided and random-of-m.
        sampling: how candidates are drawn; its seed is replaced at every step.
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
        """How the M candidates of one step are drawn."""
        return replace(self.sampling, first_greedy=self.greedy_candidate)


def greedy(play: Play) -> Agent:
    """M = 1 at temperature 0."""
    return first_reply(lambda step: replace(play.sampling, temperature=0.0, seed=None))


def sample(play: Play, seed: int, task_id: str) -> Agent:
    """M = 1 at the sampling temperature."""
    return first_reply(seeded(play.sampling, seed, task_id))


def random_of_m(play: Play, seed: int, task_id: str) -> Agent:
    """One of the M drawn candidates at random, a reply drawn twice being twice as likely."""
    sampling_at = seeded(play.drawing, seed, task_id)

    def choose(history: History, step: int) -> Generator[ModelRequest, Any, AgentStep]:
        candidates: list[Candidate] = yield SampleRequest(
            history, play.candidates, sampling_at(step)
        )
        pick = Random(derived_seed(seed, task_id, step, "pick")).randrange(len(candidates))
        return _choice(candidates, candidates[pick].message)

    return choose


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

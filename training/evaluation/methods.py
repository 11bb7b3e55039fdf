"""The methods that are compared, as agents (QLASS, algorithm 4 and section 4.1).

A chooser sees the history and what the models answer, nothing else: the guided agent cannot
look at the environment's reward, because no value of it ever reaches this code. Best-of-n is
the one method that peeks, after its trajectories are over, and is labelled so.

q-guided, random-of-m and sample derive their seeds from the same parts, so where their
histories agree they choose among the same candidates.
"""

from collections.abc import Generator, Sequence
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any, Literal

from qnet.decision.selection import distinct, select
from qnet.types import (
    Candidate,
    History,
    Message,
    SampleRequest,
    Sampling,
    ScoreRequest,
    ScoreResult,
)
from training.rollouts.episode import Agent, AgentStep, derived_seed, first_reply, seeded
from training.rollouts.rollout import ModelRequest

TieBreak = Literal["first", "most-drawn", "logprob"]


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

    A step whose candidates are all the same needs no Q and is not scored.
    """
    sampling_at = seeded(play.drawing, seed, task_id)

    def choose(history: History, step: int) -> Generator[ModelRequest, Any, AgentStep]:
        candidates: list[Candidate] = yield SampleRequest(
            history, play.candidates, sampling_at(step)
        )
        different = distinct([candidate.message for candidate in candidates]).messages
        if len(different) == 1:
            return _choice(candidates, different[0])
        scored: ScoreResult = yield ScoreRequest(history, different)
        best = best_message(candidates, different, scored.q_values, play.tie_break)
        return _choice(candidates, best, scored_tokens=scored.computed_tokens)

    return choose


def best_message(
    candidates: Sequence[Candidate],
    different: Sequence[Message],
    q_values: Sequence[float],
    tie_break: TieBreak,
) -> Message:
    """The message of highest Q; the earliest where the tie-break leaves several.

    Raises:
        ScorerUnavailableError: a Q-value is not a finite number.
    """
    highest = q_values[select(different, q_values).chosen]
    tied = [message for message, q in zip(different, q_values, strict=True) if q == highest]
    return max(tied, key=lambda message: _preference(message, candidates, tie_break))


def _preference(message: Message, candidates: Sequence[Candidate], tie_break: TieBreak) -> float:
    drawn = [candidate for candidate in candidates if candidate.message == message]
    match tie_break:
        case "first":
            return 0.0
        case "most-drawn":
            return float(len(drawn))
        case "logprob":
            return float("-inf") if drawn[0].logprob is None else drawn[0].logprob


def _choice(
    candidates: Sequence[Candidate], chosen: Message, *, scored_tokens: int = 0
) -> AgentStep:
    return AgentStep(
        reply=chosen.content,
        completion_tokens=sum(candidate.completion_tokens for candidate in candidates),
        distinct_candidates=len({candidate.message for candidate in candidates}),
        scored_tokens=scored_tokens,
    )

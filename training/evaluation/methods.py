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

from qnet.types import Candidate, History, SampleRequest, Sampling, ScoreRequest, ScoreResult
from training.episode import Choice, Chooser, derived_seed, first_reply, seeded
from training.rollout import ModelRequest

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


def greedy(play: Play) -> Chooser:
    """M = 1 at temperature 0."""
    return first_reply(lambda step: replace(play.sampling, temperature=0.0, seed=None))


def sample(play: Play, seed: int, task_id: str) -> Chooser:
    """M = 1 at the sampling temperature."""
    return first_reply(seeded(play.sampling, seed, task_id))


def random_of_m(play: Play, seed: int, task_id: str) -> Chooser:
    """One of the M drawn candidates at random, a reply drawn twice being twice as likely."""
    sampling_at = seeded(play.drawing, seed, task_id)

    def choose(history: History, step: int) -> Generator[ModelRequest, Any, Choice]:
        candidates: list[Candidate] = yield SampleRequest(
            history, play.candidates, sampling_at(step)
        )
        pick = Random(derived_seed(seed, task_id, step, "pick")).randrange(len(candidates))
        return _choice(candidates, candidates[pick])

    return choose


def q_guided(play: Play, seed: int, task_id: str) -> Chooser:
    """The candidate of highest Q among the different ones of M (QLASS, algorithm 4).

    A step whose candidates are all the same needs no Q and is not scored.
    """
    sampling_at = seeded(play.drawing, seed, task_id)

    def choose(history: History, step: int) -> Generator[ModelRequest, Any, Choice]:
        candidates: list[Candidate] = yield SampleRequest(
            history, play.candidates, sampling_at(step)
        )
        distinct = deduplicate(candidates)
        if len(distinct) == 1:
            return _choice(candidates, candidates[0])
        messages = tuple(group[0].message for group in distinct)
        scored: ScoreResult = yield ScoreRequest(history, messages)
        best = best_group(distinct, scored.q_values, play.tie_break)
        return _choice(candidates, distinct[best][0], scored_tokens=scored.computed_tokens)

    return choose


def deduplicate(candidates: Sequence[Candidate]) -> list[list[Candidate]]:
    """Candidates with the same reply in one group, in the order of their first draw."""
    groups: dict[str, list[Candidate]] = {}
    for candidate in candidates:
        groups.setdefault(candidate.message.content, []).append(candidate)
    return list(groups.values())


def best_group(
    groups: Sequence[Sequence[Candidate]], q_values: Sequence[float], tie_break: TieBreak
) -> int:
    """Index of the highest Q; the earliest where the tie-break leaves several."""

    def rank(index: int) -> tuple[float, float, int]:
        return q_values[index], _preference(groups[index], tie_break), -index

    return max(range(len(groups)), key=rank)


def _preference(group: Sequence[Candidate], tie_break: TieBreak) -> float:
    match tie_break:
        case "first":
            return 0.0
        case "most-drawn":
            return float(len(group))
        case "logprob":
            return float("-inf") if group[0].logprob is None else group[0].logprob


def _choice(
    candidates: Sequence[Candidate], chosen: Candidate, *, scored_tokens: int = 0
) -> Choice:
    return Choice(
        reply=chosen.message.content,
        completion_tokens=sum(candidate.completion_tokens for candidate in candidates),
        distinct_candidates=len(deduplicate(candidates)),
        scored_tokens=scored_tokens,
    )

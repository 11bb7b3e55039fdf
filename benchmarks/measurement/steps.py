"""Workload of the scoring benchmark: one step of an episode, and the cached step before it."""

from dataclasses import dataclass
from random import Random

from benchmarks.measurement.shapes import spell
from qguide.qnet.types import Message, ScoreRequest

OBSERVATION_TOKENS = 80


@dataclass(frozen=True, slots=True)
class Point:
    """Size of a step: `candidates` of about `candidate_tokens` each, after a cached history.

    Attributes:
        history: tokens of the cached history, including the action chosen last; the new
            observation follows it.
        alike: number of tokens that all candidates begin with, such as a common thought.
    """

    history: int
    candidates: int
    candidate_tokens: int
    alike: int = 0

    def __str__(self) -> str:
        sizes = (self.history, self.candidates, self.candidate_tokens)
        return "x".join(map(str, (*sizes, self.alike) if self.alike else sizes))

    @property
    def candidate_lengths(self) -> list[int]:
        """Lengths evenly spread from 3/4 to 5/4 of `candidate_tokens`."""
        if self.candidates == 1:
            return [self.candidate_tokens]
        spread = self.candidate_tokens // 4
        steps = self.candidates - 1
        return [self.candidate_tokens - spread + 2 * spread * i // steps for i in range(self.candidates)]

    @property
    def new_tokens(self) -> int:
        """Number of tokens that no earlier step has seen."""
        return OBSERVATION_TOKENS + self.alike + sum(n - self.alike for n in self.candidate_lengths)

    @property
    def longest(self) -> int:
        """Length of the longest full sequence."""
        return self.history + OBSERVATION_TOKENS + max(self.candidate_lengths)


@dataclass(frozen=True, slots=True)
class TokenizedStep:
    """A history and its candidates as token ids."""

    history: list[int]
    candidates: list[list[int]]

    @property
    def sequences(self) -> list[list[int]]:
        """Full sequences: the history followed by each candidate."""
        return [self.history + candidate for candidate in self.candidates]


@dataclass(frozen=True, slots=True)
class Step:
    """A step to measure.

    Attributes:
        before: the previous step.
        chosen: index of its candidate that became the action.
        now: the step to measure.
        request_before: `before` as messages.
        request: `now` as messages.
    """

    before: TokenizedStep
    chosen: int
    now: TokenizedStep
    request_before: ScoreRequest
    request: ScoreRequest


def draw_step(point: Point, *, vocabulary: int, rng: Random) -> Step:
    """Draw a step of random tokens, after a random choice at the previous step.

    Args:
        vocabulary: number of tokens; token 0 ends a turn and is not drawn otherwise.
    """

    def words(count: int) -> list[int]:
        return [rng.randrange(1, vocabulary) for _ in range(count)]

    def replies() -> list[list[int]]:
        alike = words(point.alike)
        return [[*alike, *words(length - point.alike - 1), 0] for length in lengths]

    chosen = rng.randrange(point.candidates)
    lengths = point.candidate_lengths
    start = words(point.history - lengths[chosen])
    before = TokenizedStep(start, replies())
    observation = words(OBSERVATION_TOKENS)
    history = start + before.candidates[chosen] + observation
    now = TokenizedStep(history, replies())
    task = Message("user", spell(start))
    action = _reply(before.candidates[chosen])
    return Step(
        before,
        chosen,
        now,
        ScoreRequest((task,), tuple(map(_reply, before.candidates))),
        ScoreRequest((task, action, Message("user", spell(observation))), tuple(map(_reply, now.candidates))),
    )


def _reply(token_ids: list[int]) -> Message:
    """An assistant message; the renderer adds the token that ends the turn."""
    return Message("assistant", spell(token_ids[:-1]))

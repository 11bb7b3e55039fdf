"""The workload: one step of an episode, and the step before it, which a cache already knows."""

from dataclasses import dataclass
from random import Random

from qguide.bench.measurement.shapes import spell
from qnet.types import Message, ScoreRequest

OBSERVATION_TOKENS = 80


@dataclass(frozen=True, slots=True)
class Point:
    """A step's size: `candidates` of about `candidate_tokens` over a known history.

    Attributes:
        history: tokens of the history that the step before left behind, its chosen action's
            included; the new observation comes after it.
        alike: tokens that all candidates begin with, such as one thought's.
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
        """`candidate_tokens` on average, a quarter less to a quarter more: no two are alike."""
        if self.candidates == 1:
            return [self.candidate_tokens]
        spread = self.candidate_tokens // 4
        steps = self.candidates - 1
        return [
            self.candidate_tokens - spread + 2 * spread * i // steps for i in range(self.candidates)
        ]

    @property
    def new_tokens(self) -> int:
        """Tokens that no earlier step has seen."""
        return OBSERVATION_TOKENS + self.alike + sum(n - self.alike for n in self.candidate_lengths)

    @property
    def longest(self) -> int:
        """Tokens of the longest full sequence."""
        return self.history + OBSERVATION_TOKENS + max(self.candidate_lengths)


@dataclass(frozen=True, slots=True)
class Asked:
    """A state and its candidates as token ids."""

    history: list[int]
    candidates: list[list[int]]

    @property
    def sequences(self) -> list[list[int]]:
        """History and candidate of each candidate."""
        return [self.history + candidate for candidate in self.candidates]


@dataclass(frozen=True, slots=True)
class Step:
    """A step to measure.

    Attributes:
        before: what was asked at the step before.
        chosen: which of its candidates became the action.
        now: what is asked now.
        request_before: `before` as messages.
        request: `now` as messages.
    """

    before: Asked
    chosen: int
    now: Asked
    request_before: ScoreRequest
    request: ScoreRequest


def draw_step(point: Point, *, vocabulary: int, rng: Random) -> Step:
    """A step of random tokens; the action chosen before it is any of its candidates.

    Args:
        vocabulary: token 0 ends a turn and is drawn for nothing else.
    """

    def words(count: int) -> list[int]:
        return [rng.randrange(1, vocabulary) for _ in range(count)]

    def replies() -> list[list[int]]:
        alike = words(point.alike)
        return [[*alike, *words(length - point.alike - 1), 0] for length in lengths]

    chosen = rng.randrange(point.candidates)
    lengths = point.candidate_lengths
    start = words(point.history - lengths[chosen])
    before = Asked(start, replies())
    observation = words(OBSERVATION_TOKENS)
    history = start + before.candidates[chosen] + observation
    now = Asked(history, replies())
    task = Message("user", spell(start))
    action = _reply(before.candidates[chosen])
    return Step(
        before,
        chosen,
        now,
        ScoreRequest((task,), tuple(map(_reply, before.candidates))),
        ScoreRequest(
            (task, action, Message("user", spell(observation))), tuple(map(_reply, now.candidates))
        ),
    )


def _reply(token_ids: list[int]) -> Message:
    """An assistant's message; the renderer adds the token that ends its turn."""
    return Message("assistant", spell(token_ids[:-1]))

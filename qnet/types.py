"""The words of the online path: messages, candidates, scores. No torch here."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

Role = Literal["system", "user", "assistant", "tool"]


@dataclass(frozen=True, slots=True)
class Message:
    """One turn of the chat, OpenAI's shape."""

    role: Role
    content: str


History = tuple[Message, ...]
"""The state s_t: the task instruction, then actions and observations in turn."""


@dataclass(frozen=True, slots=True)
class Sampling:
    """How a policy draws.

    Attributes:
        temperature: 0 is greedy; the papers draw candidates at 0.7.
        max_tokens: most completion tokens of one candidate.
        seed: makes the draws repeatable; None draws from fresh entropy.
        first_greedy: the first candidate is drawn at temperature 0, the others as said.
    """

    temperature: float = 0.7
    max_tokens: int = 128
    seed: int | None = None
    first_greedy: bool = False


@dataclass(frozen=True, slots=True)
class Candidate:
    """What the policy would say next, and what saying it cost.

    Attributes:
        message: the assistant's reply (the whole ReAct step).
        completion_tokens: tokens generated for it, the end-of-turn token included; 0 for the
            copy of a candidate that could only be drawn once.
        logprob: sum of log pi(token) at temperature 1, or None if unknown.
        finished: False where max_tokens cut it off.
        prompt_tokens: of the history it was drawn after, the same for all that were drawn with
            it; 0 if unknown.
    """

    message: Message
    completion_tokens: int
    logprob: float | None = None
    finished: bool = True
    prompt_tokens: int = 0


@dataclass(frozen=True, slots=True)
class SampleRequest:
    """One history of a batch to draw `n` candidates for."""

    history: History
    n: int
    sampling: Sampling = field(default_factory=Sampling)


@dataclass(frozen=True, slots=True)
class ScoreRequest:
    """One history of a batch and the candidates to score after it."""

    history: History
    candidates: tuple[Message, ...]


@dataclass(frozen=True, slots=True)
class ScoreResult:
    """Q of each candidate of one request, and what reading it cost.

    Attributes:
        q_values: one per candidate, in the request's order.
        computed_tokens: tokens that went through the trunk.
        cached_tokens: tokens whose keys and values were already there.
    """

    q_values: tuple[float, ...]
    computed_tokens: int
    cached_tokens: int = 0


@dataclass(frozen=True, slots=True)
class CacheUse:
    """What a scorer keeps between requests.

    Attributes:
        nbytes: of keys and values.
        evictions: histories dropped so far because the budget was full.
    """

    nbytes: int = 0
    evictions: int = 0


class Policy(Protocol):
    """Draws candidate actions for a history."""

    name: str

    async def sample(self, history: History, *, n: int, sampling: Sampling) -> list[Candidate]:
        """Draw `n` candidates.

        Raises:
            HistoryTooLongError: the history leaves no room for a reply.
        """
        ...


class BatchPolicy(Protocol):
    """Draws for many histories at once: what jobs that play many games use."""

    name: str

    def sample_batch(self, requests: Sequence[SampleRequest]) -> list[list[Candidate]]:
        """Candidates of each request, in order. Synchronous; owns the device."""
        ...


class Scorer(Protocol):
    """Q-values for the candidates of each request. Synchronous; owns the device."""

    name: str

    def score(self, requests: Sequence[ScoreRequest]) -> list[ScoreResult]:
        """Q(s, a) read at each candidate's last token, in the requests' order.

        Raises:
            HistoryTooLongError: history and candidate exceed the trunk's context.
        """
        ...


class CachingScorer(Scorer, Protocol):
    """A scorer that keeps histories between requests; the thread that scores owns it."""

    @property
    def context(self) -> int | None:
        """Most tokens of history and candidate; None: no limit."""
        ...

    @property
    def cache(self) -> CacheUse:
        """What it keeps now."""
        ...

    def close(self) -> None:
        """Let go of every history and connection; it scores no more."""
        ...

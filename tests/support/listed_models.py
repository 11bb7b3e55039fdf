"""Policies that draw from a list or cannot draw, and scorers that know each text; they note what they are asked."""

from collections.abc import Mapping, Sequence

from qguide.qnet.errors import HistoryTooLongError, ScorerUnavailableError
from qguide.qnet.types import Candidate, History, Message, SampleRequest, Sampling, Scorer, ScoreRequest, ScoreResult
from qguide.qnet.work import TokenUsage


class Drawn:
    """Draws from a list in order, or fails."""

    name = "drawn"

    def __init__(
        self, replies: Sequence[str | Candidate], *, prompt_tokens: int = 0, error: Exception | None = None
    ) -> None:
        """`prompt_tokens` is what each request to an upstream would cost; 0 for none."""
        self.histories: list[History] = []
        self.samplings: list[Sampling] = []
        self.batches: list[int] = []
        self._left = [one if isinstance(one, Candidate) else Candidate(Message("assistant", one), 1) for one in replies]
        self._prompt_tokens = prompt_tokens
        self._error = error

    async def sample(self, history: History, *, n: int, sampling: Sampling) -> list[Candidate]:
        """The next `n`."""
        self.histories.append(history)
        self.samplings.append(sampling)
        self.batches.append(n)
        if self._error:
            raise self._error
        drawn, self._left = self._left[:n], self._left[n:]
        if self._prompt_tokens:
            [first, *others] = drawn
            spent = TokenUsage(self._prompt_tokens, len(drawn))
            return [Candidate(first.message, first.completion_tokens, spent=spent), *others]
        return drawn


class Known:
    """Knows the Q of each text, behind a rule if there is one; each costs a token."""

    name = "known"

    def __init__(self, q_of: Mapping[str, float], rules: Mapping[str, float] | None = None) -> None:
        self.requests: list[ScoreRequest] = []
        self._q_of = q_of
        self._rules = rules

    async def score(self, request: ScoreRequest) -> ScoreResult:
        """The Q of each candidate.

        Raises:
            ScorerUnavailableError: one is unknown.
        """
        self.requests.append(request)
        texts = [message.content for message in request.candidates]
        if not set(texts) <= set(self._q_of):
            raise ScorerUnavailableError("the scorer is gone")
        rules = tuple((self._rules[text],) for text in texts) if self._rules else ()
        return ScoreResult(tuple(self._q_of[text] for text in texts), len(texts), rules=rules)


class Speechless:
    """Every history is too long for it."""

    name = "speechless"

    def sample_batch(self, requests: Sequence[SampleRequest]) -> list[list[Candidate]]:
        """Nothing."""
        raise HistoryTooLongError("too long")


class ByLength(Scorer):
    """Q is the candidate's length."""

    name = "by-length"

    def score(self, requests: Sequence[ScoreRequest]) -> list[ScoreResult]:
        """Five tokens a request."""
        return [ScoreResult(tuple(float(len(c.content)) for c in request.candidates), 5) for request in requests]

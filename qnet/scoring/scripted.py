"""A scorer without a model, for demos, tests and clients that try the interface."""

from collections.abc import Mapping, Sequence
from itertools import chain

from qguide.qnet.sliced_scorer import CachingScorer
from qguide.qnet.types import ScoreRequest, ScoreResult


class ScriptedScorer(CachingScorer):
    """A scorer without a model, for demos and tests: Q of the first keyword, in their order, that is said."""

    def __init__(
        self,
        q_of_keyword: Mapping[str, float],
        *,
        otherwise: float = 0.0,
        name: str = "scripted",
        reads_observation: bool = False,
    ) -> None:
        self.name = name
        self.reads_observation = reads_observation
        self._q_of_keyword = dict(q_of_keyword)
        self._otherwise = otherwise

    def score(self, requests: Sequence[ScoreRequest]) -> list[ScoreResult]:
        """Q of each candidate; a word counts as a token."""
        return [self._score(request) for request in requests]

    def _score(self, request: ScoreRequest) -> ScoreResult:
        request.require_readable(name=self.name, reads_observation=self.reads_observation)
        observed = request.observations
        read = observed or [(message,) for message in request.candidates]
        said = ["\n".join(message.text for message in messages) for messages in read]
        messages = (*request.history, *request.candidates, *chain.from_iterable(observed))
        words = sum(len(message.text.split()) for message in messages)
        return ScoreResult(tuple(map(self._q, said)), computed_tokens=words)

    def _q(self, said: str) -> float:
        found = (q for keyword, q in self._q_of_keyword.items() if keyword in said)
        return next(found, self._otherwise)

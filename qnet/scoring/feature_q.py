"""Scorer of a Q model without a network."""

from collections.abc import Sequence
from itertools import chain

from qguide.qnet.models.feature_q import FeatureQ
from qguide.qnet.sliced_scorer import CachingScorer
from qguide.qnet.types import ScoreRequest, ScoreResult


class FeatureScorer(CachingScorer):
    """Q of each candidate by its words; see `qguide.qnet.models.feature_q`.

    Of a candidate that brings what it was answered it is the value of the state that came of it. A
    word counts as a token: nothing else is computed, and nothing is kept between requests.
    """

    def __init__(self, name: str, model: FeatureQ) -> None:
        self.name = name
        self._model = model

    def score(self, requests: Sequence[ScoreRequest]) -> list[ScoreResult]:
        """Q of each candidate."""
        return [self._score(request) for request in requests]

    def _score(self, request: ScoreRequest) -> ScoreResult:
        request.require_readable(name=self.name, reads_observation=bool(request.observations))
        history, candidates = request.history, request.candidates
        if request.observations:
            tried = zip(candidates, request.observations, strict=True)
            q_values = tuple(self._model.value_of((*history, candidate, *answer)) for candidate, answer in tried)
        else:
            q_values = self._model.q_values(history, candidates)
        messages = (*history, *candidates, *chain.from_iterable(request.observations))
        return ScoreResult(q_values, sum(len(message.text.split()) for message in messages))

"""Scorer of a Q model without a network."""

from collections.abc import Sequence

from qguide.qnet.models.feature_q import FeatureQ
from qguide.qnet.scoring.rendered_requests import require_candidates, require_observations
from qguide.qnet.sliced_scorer import CacheUse
from qguide.qnet.support.slices import in_one_slice
from qguide.qnet.types import ScoreRequest, ScoreResult, Slices


class FeatureScorer:
    """Q of each candidate by its words; see `qguide.qnet.models.feature_q`.

    A word counts as a token: nothing else is computed, and nothing is kept between requests.
    """

    reads_observation = False
    context: int | None = None

    def __init__(self, name: str, model: FeatureQ) -> None:
        self.name = name
        self._model = model

    def score(self, requests: Sequence[ScoreRequest]) -> list[ScoreResult]:
        """Q of each candidate."""
        return [self._score(request) for request in requests]

    def prepare(self, request: ScoreRequest) -> ScoreRequest:
        """Nothing to do."""
        return request

    def slices(self, prepared: Sequence[ScoreRequest]) -> Slices[list[ScoreResult]]:
        """The results of `score`, at once."""
        return in_one_slice(lambda: self.score(prepared))

    @property
    def cache(self) -> CacheUse:
        """Nothing is kept."""
        return CacheUse()

    def close(self) -> None:
        """There is nothing to let go of."""

    def _score(self, request: ScoreRequest) -> ScoreResult:
        require_candidates(request)
        require_observations(request, name=self.name, reads_observation=False)
        q_values = self._model.q_values(request.history, request.candidates)
        messages = (*request.history, *request.candidates)
        return ScoreResult(q_values, sum(len(message.text.split()) for message in messages))

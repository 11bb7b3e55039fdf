"""Full sequences in place of packed ones, for trunks with a memory beside attention."""

from collections.abc import Sequence

from qnet.scoring.implicit_q import NaiveImplicitScorer
from qnet.scoring.rendered_requests import RenderedRequest
from qnet.scoring.value_head import NaiveScorer
from qnet.support.slices import finish
from qnet.types import CacheUse, ScoreRequest, ScoreResult, Slices
from qnet.usage import TokenUsage


class FullSequenceScorer:
    """Serves a naive scorer: each candidate costs its whole sequence, and nothing is kept.

    Hybrid trunks (convolutions, state spaces, linear attention) remember in a state that a packed
    row cannot divide among conversations, so this is the one way to run them in process.
    """

    def __init__(self, naive: NaiveScorer | NaiveImplicitScorer) -> None:
        self._naive = naive
        self.name = naive.name
        self.context = naive.context
        self.reads_observation = getattr(naive, "reads_observation", False)

    def score(self, requests: Sequence[ScoreRequest]) -> list[ScoreResult]:
        """Q of each candidate, in the requests' order.

        Raises:
            HistoryTooLongError: history and candidate exceed the trunk's context.
            InvalidCandidatesError: a request has no candidates.
        """
        return finish(self.slices([self.prepare(request) for request in requests]))

    def prepare(self, request: ScoreRequest) -> RenderedRequest:
        """The request's tokens; raises what `score` does."""
        return self._naive.prepare(request)

    def slices(self, prepared: Sequence[RenderedRequest]) -> Slices[list[ScoreResult]]:
        """The results of `score`, one request after the other."""
        spent: dict[int, TokenUsage] = {}
        found = []
        for index, rendered in enumerate(prepared):
            spent[index] = TokenUsage(sum(map(len, rendered.sequences)), 0)
            yield dict(spent)
            found.append(self._naive.score_rendered(rendered))
        return found

    @property
    def cache(self) -> CacheUse:
        """Always empty."""
        return CacheUse()

    def close(self) -> None:
        """Nothing is kept that could be let go."""

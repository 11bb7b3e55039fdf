"""Reading ahead during a step: the Q model reads the history while an upstream draws."""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace

from qguide.qnet.device.read_ahead import ReadAhead
from qguide.qnet.errors import ScorerUnavailableError
from qguide.qnet.types import AsyncScorer, History, ScoreRequest, ScoreResult
from qguide.server.observability.metrics import Metrics
from qguide.server.q_models.served import QModelLease


@contextmanager
def reading_ahead(
    q_model: QModelLease, history: History, scorer: AsyncScorer, metrics: Metrics
) -> Iterator[AsyncScorer]:
    """Read a history ahead during the block; yields the scorer for what is drawn meanwhile.

    The tokens that it cost are counted and charged like those of scoring, used or not.
    """
    reading: ReadAhead | None = None
    with suppress(ScorerUnavailableError):  # the request that scores is told the same
        reading = q_model.model.read_ahead(ScoreRequest(history, ()))
    if reading is None:
        yield scorer
        return
    ahead = _AheadScorer(scorer, reading)
    try:
        yield ahead
    finally:
        tokens = reading.stop()
        metrics.count_read_ahead(q_model.id, tokens, used=ahead.scored)
        metrics.count_scored(q_model.id, computed=tokens, cached=0)


class _AheadScorer:
    """A scorer of a history that is being read ahead.

    Attributes:
        scored: the first scores are there.
    """

    def __init__(self, scorer: AsyncScorer, reading: ReadAhead) -> None:
        self.name = scorer.name
        self.scored = False
        self._scorer = scorer
        self._reading = reading

    async def score(self, request: ScoreRequest) -> ScoreResult:
        """Score candidates; what was read ahead for them counts as computed, not as cached."""
        ahead = self._reading.stop()
        result = await self._scorer.score(request)
        if self.scored:
            return result
        self.scored = True
        mine = min(ahead, result.cached_tokens)
        return replace(
            result,
            computed_tokens=result.computed_tokens + mine,
            cached_tokens=result.cached_tokens - mine,
        )

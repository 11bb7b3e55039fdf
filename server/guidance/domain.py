"""States of another kind than a Q model was trained on, which it does not guide."""

import asyncio
from typing import Literal

from qguide.qnet.errors import OutOfDomainError
from qguide.qnet.features.domain import Domain
from qguide.qnet.types import AsyncScorer, History, ScoreRequest, ScoreResult
from qguide.server.observability.metrics import Metrics
from qguide.server.q_models.served import QModelLease
from qguide.server.settings.settings import Settings

OutOfDomain = Literal["unguided", "guide"]
"""Answer to a state outside the Q model's domain: the likeliest candidate, or the Q model's."""


def domain_of(
    q_model: QModelLease, wanted: OutOfDomain | None, settings: Settings
) -> Domain | None:
    """The domain that a request has to be in; None where it is guided all the same."""
    mode = wanted or settings.out_of_domain
    return q_model.model.domain if mode == "unguided" else None


async def reason_outside(domain: Domain | None, history: History) -> str:
    """The reason why a state is outside; "" inside. Read on a thread: a history may be long."""
    if domain is None:
        return ""
    distance = await asyncio.to_thread(domain.distance, history)
    return distance.reason if distance.outside else ""


class DomainScorer:
    """A Q model's scorer that refuses states outside its domain."""

    def __init__(self, scorer: AsyncScorer, domain: Domain, metrics: Metrics, q_model: str) -> None:
        self.name = scorer.name
        self._scorer = scorer
        self._domain = domain
        self._metrics = metrics
        self._q_model = q_model

    async def score(self, request: ScoreRequest) -> ScoreResult:
        """Score each candidate of a state inside."""
        if reason := await reason_outside(self._domain, request.history):
            self._metrics.out_of_domain.labels(self._q_model).inc()
            raise OutOfDomainError(
                f'{reason}; "out_of_domain": "guide" (QGUIDE_OUT_OF_DOMAIN) scores it all the same'
            )
        return await self._scorer.score(request)

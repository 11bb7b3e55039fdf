"""Shadow scoring: a second Q model scores the same request, without delaying it.

It starts when the request has its scores and runs on a separate thread. Its result is only logged
and counted: the second model's choice is never returned.
"""

import asyncio
from typing import Protocol

import structlog

from qguide.qnet.decision.selection import select
from qguide.qnet.types import AsyncScorer, ScoreRequest, ScoreResult
from qguide.server.observability.metrics import Metrics, Outcome

_log = structlog.get_logger(__name__)


class _Model(Protocol):
    """The part of `QModel` used here."""

    id: str
    name: str
    scorer: AsyncScorer
    shadow_scorer: AsyncScorer

    def hold(self) -> None: ...
    def release(self) -> None: ...


class ShadowScoring:
    """Running shadow scoring tasks; their number is limited by the shadow thread's queue."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._tasks: set[asyncio.Task[None]] = set()

    def start(
        self, request: ScoreRequest, result: ScoreResult, *, model: _Model, shadow: _Model
    ) -> None:
        """Start scoring with the shadow, which is held until the task has ended."""
        shadow.hold()
        task = asyncio.create_task(self._score(request, result, model.id, shadow))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        task.add_done_callback(lambda _: shadow.release())

    async def close(self) -> None:
        """Cancel all running tasks."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _score(
        self, request: ScoreRequest, result: ScoreResult, q_model: str, shadow: _Model
    ) -> None:
        try:
            again = await shadow.shadow_scorer.score(request)
            self._metrics.count_tokens(
                shadow.id, computed=again.computed_tokens, cached=again.cached_tokens
            )
            chosen = select(request.candidates, result.q_values).chosen
            shadow_chosen = select(request.candidates, again.q_values).chosen
        except Exception as error:  # its message is not logged, because it may hold a prompt
            self._metrics.count_shadow(shadow.id, "failed")
            reason = type(error).__name__
            _log.warning("shadow_failed", q_model=q_model, shadow=shadow.id, reason=reason)
            return
        outcome: Outcome = "agreed" if chosen == shadow_chosen else "disagreed"
        self._metrics.count_shadow(shadow.id, outcome)
        _log.info(
            "shadow_scored",
            q_model=q_model,
            shadow=shadow.id,
            chosen=chosen,
            shadow_chosen=shadow_chosen,
            q_values=list(result.q_values),
            shadow_q_values=list(again.q_values),
        )


class ShadowedScorer:
    """Answers with one Q model, then lets another score the same request."""

    def __init__(self, model: _Model, shadow: _Model, scoring: ShadowScoring) -> None:
        self.name = model.name
        self._model = model
        self._shadow = shadow
        self._scoring = scoring

    async def score(self, request: ScoreRequest) -> ScoreResult:
        """Score each candidate with the first model and start the shadow."""
        result = await self._model.scorer.score(request)
        self._scoring.start(request, result, model=self._model, shadow=self._shadow)
        return result

"""A Q model as a request holds it, and its shadow, which scores the same request without delay.

The shadow starts when the request has its scores, and runs on a thread of its own. Its result is
only logged and counted: the second model's choice is never returned.
"""

import asyncio
from dataclasses import dataclass

import structlog

from qguide.qnet.decision.selection import select
from qguide.qnet.types import ScoreRequest, ScoreResult
from qguide.server.observability.metrics import Metrics, Outcome
from qguide.server.q_models.served import ServedQModel

_log = structlog.get_logger(__name__)


class ShadowScoring:
    """Running shadow scoring tasks; their number is limited by the shadow thread's queue."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._tasks: set[asyncio.Task[None]] = set()

    def start(
        self, request: ScoreRequest, result: ScoreResult, *, q_model: str, shadow: ServedQModel
    ) -> None:
        """Start scoring with the shadow, which is held until the task has ended."""
        shadow.hold()
        task = asyncio.create_task(self._score(request, result, q_model, shadow))
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
        self, request: ScoreRequest, result: ScoreResult, q_model: str, shadow: ServedQModel
    ) -> None:
        try:
            again = await shadow.score_uncharged(request)
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


@dataclass(frozen=True, slots=True)
class QModelLease:
    """The version of a Q model that a request holds until its end.

    Attributes:
        shadow: scores the same requests a second time; None for none.
    """

    model: ServedQModel
    scoring: ShadowScoring
    shadow: ServedQModel | None = None

    @property
    def id(self) -> str:
        """`name@version`."""
        return self.model.id

    @property
    def name(self) -> str:
        """The name without the version."""
        return self.model.name

    async def score(self, request: ScoreRequest) -> ScoreResult:
        """Score each candidate, then start the shadow."""
        result = await self.model.score(request)
        if self.shadow is not None:
            self.scoring.start(request, result, q_model=self.id, shadow=self.shadow)
        return result

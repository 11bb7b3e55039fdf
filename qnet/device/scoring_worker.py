"""A synchronous scorer behind the asynchronous interface of the server."""

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from qguide.qnet.device.device_thread import DeviceThread
from qguide.qnet.device.device_worker import DEFAULT_MAX_BATCH, BatchRun, DeviceWorker, Ending
from qguide.qnet.device.history_reader import HistoryReader
from qguide.qnet.device.read_ahead import ReadAhead
from qguide.qnet.device.token_estimate import CHARACTERS_PER_TOKEN, UncachedTokenEstimator
from qguide.qnet.sliced_scorer import SlicedScorer
from qguide.qnet.tenant import current_tenant
from qguide.qnet.types import ScoreRequest, ScoreResult, Slices
from qguide.qnet.usage import TokenUsage

DEFAULT_MAX_BATCH_TOKENS = 2048
"""As many as one forward pass takes: a larger batch would be split into several passes anyway."""


@dataclass(frozen=True, slots=True)
class _Prepared:
    """A request, an estimate of its new tokens, and what the scorer prepares of it."""

    request: ScoreRequest
    new_tokens: int
    tokens: "Future[Any]"


class ScoringWorker:
    """A synchronous scorer, awaited one request at a time and run in micro-batches.

    Args:
        max_batch_tokens: new tokens of one micro-batch, estimated from its texts' length.
        timeout_s: how long a request may take on the device, waiting included; None: no limit.
        max_batch, observe, observe_wait, observe_unanswered: see `DeviceWorker`.
    """

    def __init__(
        self,
        scorer: SlicedScorer,
        thread: DeviceThread,
        *,
        max_batch: int = DEFAULT_MAX_BATCH,
        max_batch_tokens: int = DEFAULT_MAX_BATCH_TOKENS,
        timeout_s: float | None = None,
        observe: Callable[[BatchRun], None] = lambda _: None,
        observe_wait: Callable[[float, Ending], None] = lambda *_: None,
        observe_unanswered: Callable[[TokenUsage], None] = lambda _: None,
    ) -> None:
        self.name = scorer.name
        self._scorer = scorer
        self._uncached = UncachedTokenEstimator()
        self._timeout_s = timeout_s
        self._worker = DeviceWorker[_Prepared, ScoreResult](
            thread,
            self._score,
            max_batch=max_batch,
            cost=lambda prepared: prepared.new_tokens,
            max_cost=max_batch_tokens,
            observe=observe,
            observe_wait=observe_wait,
            observe_unanswered=observe_unanswered,
        )

    @property
    def healthy(self) -> bool:
        """True while requests are being served."""
        return self._worker.thread.healthy

    async def score(self, request: ScoreRequest) -> ScoreResult:
        """Q of each candidate of one request.

        Raises:
            HistoryTooLongError: history and candidate exceed the trunk's context.
            ScorerUnavailableError: the thread is dead, its queue full or the time up.
        """
        salted = replace(request, cache_salt=current_tenant().cache_salt)
        new_tokens = self._uncached.new_tokens(salted)
        tokens = self._worker.thread.tokenizing(
            partial(self._scorer.prepare, salted), characters=new_tokens * CHARACTERS_PER_TOKEN
        )
        prepared = _Prepared(salted, new_tokens, tokens)
        return await self._worker.submit(prepared, after=tokens, timeout_s=self._timeout_s)

    def read_ahead(self, request: ScoreRequest) -> ReadAhead | None:
        """Begin to read a request's history, whose candidates do not exist yet.

        Returns:
            The reading, to be stopped; None if the scorer cannot read ahead.
        """
        if not isinstance(self._scorer, HistoryReader):
            return None
        salted = replace(request, cache_salt=current_tenant().cache_salt)
        characters = self._uncached.new_tokens(salted) * CHARACTERS_PER_TOKEN
        return ReadAhead(
            self._scorer,
            self._worker.thread,
            salted,
            characters=characters,
            when_read=partial(self._uncached.remember, [salted]),
        )

    def _score(self, batch: Sequence[_Prepared]) -> Slices[list[ScoreResult]]:
        results = yield from self._scorer.slices([prepared.tokens.result() for prepared in batch])
        self._uncached.remember([prepared.request for prepared in batch])
        return results

"""Tracing, timing and token accounting of draws and scores, including those of failed steps."""

from collections.abc import Awaitable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from time import perf_counter
from typing import Literal

from qguide.qnet.policies.usage_ledger import collect_usage
from qguide.qnet.types import (
    Candidate,
    History,
    Policy,
    Sampling,
    ScoreResult,
    spent_on,
)
from qguide.qnet.usage import TokenUsage, total_of
from qguide.server.observability.metrics import Metrics

Stage = Literal["paraphrase", "sample", "score"]


class MeteredPolicy:
    """A policy whose draws are traced, timed and charged.

    A draw that fails or is cancelled is charged for what upstreams have answered and the device
    has computed by then; the tokens of an unfinished upstream request are unknown.
    """

    def __init__(self, policy: Policy, metrics: Metrics, *, stage: Stage) -> None:
        self.name = policy.name
        self._policy = policy
        self._metrics = metrics
        self._stage = stage

    async def sample(self, history: History, *, n: int, sampling: Sampling) -> list[Candidate]:
        """Draw candidates, measuring the time including waits."""
        with _measured(self._stage, self._metrics), collect_usage() as answered:
            try:
                drawn = await self._policy.sample(history, n=n, sampling=sampling)
            except BaseException:  # including the cancellation when the client disconnects
                self._count(total_of(answered))
                raise
        spent = spent_on(drawn)
        self._count(spent)
        return _with_usage(drawn, spent)

    def _count(self, spent: TokenUsage) -> None:
        self._metrics.count_drawn(prompt=spent.prompt_tokens, completion=spent.completion_tokens)
        if self._stage == "paraphrase":
            self._metrics.paraphrase_tokens.inc(spent.prompt_tokens + spent.completion_tokens)


async def metered_score(
    scoring: Awaitable[ScoreResult], metrics: Metrics, q_model: str
) -> ScoreResult:
    """A score that is traced, timed including waits, and charged, even if it fails."""
    with _measured("score", metrics), collect_usage() as unanswered:
        try:
            result = await scoring
        except BaseException:  # including the cancellation when the client disconnects
            spent = total_of(unanswered)
            computed = spent.prompt_tokens + spent.completion_tokens
            metrics.count_scored(q_model, computed=computed, cached=0)
            raise
    metrics.count_scored(q_model, computed=result.computed_tokens, cached=result.cached_tokens)
    return result


def _with_usage(drawn: list[Candidate], spent: TokenUsage) -> list[Candidate]:
    """Attach the usage, as upstreams report it, so that a decision's usage equals the charge."""
    if not drawn or any(candidate.spent for candidate in drawn):
        return drawn
    return [replace(drawn[0], spent=spent), *drawn[1:]]


@contextmanager
def _measured(stage: Stage, metrics: Metrics) -> Iterator[None]:
    """Trace a stage and record its time, even if it fails."""
    started = perf_counter()
    try:
        with metrics.tracing.stage(stage):
            yield
    finally:
        metrics.stage_seconds.labels(stage).observe(perf_counter() - started)

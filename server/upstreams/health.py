"""Health checks of the upstreams, for readiness, metrics and the log.

Requests reveal the state of an upstream only while there are requests. So each upstream is regularly asked for its list
of models, which costs nothing. It is marked down after two consecutive failures, because a single one may be chance.
"""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Final

import structlog

from qguide.qnet.policies.openai_compatible import OpenAICompatiblePolicy
from qguide.server.observability.metrics import Metrics

_EVERY_S: Final = 10.0
_AGAIN_S: Final = 1.0
_log = structlog.get_logger(__name__)


class UpstreamWatch:
    """Last known state of each upstream."""

    def __init__(
        self,
        upstreams: Sequence[OpenAICompatiblePolicy],
        metrics: Metrics,
        *,
        every_s: float = _EVERY_S,
        again_s: float = _AGAIN_S,
    ) -> None:
        self._upstreams = upstreams
        self._again_s = again_s  # time between a first failure and the check that confirms it
        self._every_s = every_s
        self._problems: dict[str, str] = {}
        self._up = metrics.upstream_up() if upstreams else None

    @property
    def details(self) -> dict[str, str]:
        """One line per upstream: "ok" or its problem."""
        return {f"upstream {one.name}": self._line(one) for one in self._upstreams}

    def is_gone(self, name: str) -> bool:
        """True if its last two checks failed."""
        return bool(self._problems.get(name))

    @asynccontextmanager
    async def watched(self) -> AsyncIterator[None]:
        """Check at once, then regularly until the block is left."""
        asking = [asyncio.create_task(self._ask_on(one)) for one in self._upstreams]
        try:
            yield
        finally:
            for task in asking:
                task.cancel()
            await asyncio.gather(*asking, return_exceptions=True)

    async def _ask_on(self, upstream: OpenAICompatiblePolicy) -> None:
        while True:
            problem = await _health_problem(upstream)
            if problem and not self.is_gone(upstream.name):
                await asyncio.sleep(self._again_s)
                problem = await _health_problem(upstream)
            if problem is not None:
                self._note(upstream.name, problem)
            await asyncio.sleep(self._every_s)

    def _note(self, name: str, problem: str) -> None:
        known = self._problems.get(name, "")
        if problem and not known:
            _log.error("upstream_gone", upstream=name, reason=problem)
        if known and not problem:
            _log.info("upstream_back", upstream=name)
        self._problems[name] = problem
        if self._up is not None:
            self._up.labels(name).set(0 if problem else 1)

    def _line(self, upstream: OpenAICompatiblePolicy) -> str:
        """Status line; a circuit breaker opened by requests takes precedence over the checks."""
        if upstream.circuit_open:
            return "failed repeatedly; circuit breaker open, no requests sent until it is probed"
        if upstream.name not in self._problems:
            return "not checked yet"
        return self._problems[upstream.name] or "ok"


async def _health_problem(upstream: OpenAICompatiblePolicy) -> str | None:
    try:
        return await upstream.health_problem()
    except Exception as error:  # an unexpected error must not end the checks
        return f"the check failed: {type(error).__name__}"

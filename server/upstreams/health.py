"""Whether the upstreams are there, asked now and then: for readiness, metrics and the log.

What requests meet is known only where there are requests; after a start, or where nobody asks,
an upstream that is gone would go unnoticed. So each is asked for its models, which costs nothing.
One failure may be chance or a busy moment: who fails is asked again, and is gone only then.
"""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Final

import structlog

from qnet.policies.openai_compatible import OpenAICompatiblePolicy
from server.observability.metrics import Metrics

_EVERY_S: Final = 10.0
_AGAIN_S: Final = 1.0
_log = structlog.get_logger(__name__)


class UpstreamWatch:
    """What is known of each upstream.

    Args:
        every_s: how often they are asked.
        again_s: after a failure.
    """

    def __init__(
        self,
        upstreams: Sequence[OpenAICompatiblePolicy],
        metrics: Metrics,
        *,
        every_s: float = _EVERY_S,
        again_s: float = _AGAIN_S,
    ) -> None:
        self._upstreams = upstreams
        self._again_s = again_s
        self._every_s = every_s
        self._defects: dict[str, str] = {}
        self._up = metrics.upstream_up() if upstreams else None

    @property
    def details(self) -> dict[str, str]:
        """A line for each: ok, or what is wrong."""
        return {f"upstream {one.name}": self._line(one) for one in self._upstreams}

    def is_gone(self, name: str) -> bool:
        """Whether it did not answer when it was last asked, and asked again."""
        return bool(self._defects.get(name))

    @asynccontextmanager
    async def watched(self) -> AsyncIterator[None]:
        """Ask as long as this lasts, beginning at once."""
        asking = [asyncio.create_task(self._ask_on(one)) for one in self._upstreams]
        try:
            yield
        finally:
            for task in asking:
                task.cancel()
            await asyncio.gather(*asking, return_exceptions=True)

    async def _ask_on(self, upstream: OpenAICompatiblePolicy) -> None:
        while True:
            defect = await _defect_of(upstream)
            if defect and not self.is_gone(upstream.name):
                await asyncio.sleep(self._again_s)
                defect = await _defect_of(upstream)
            if defect is not None:
                self._note(upstream.name, defect)
            await asyncio.sleep(self._every_s)

    def _note(self, name: str, defect: str) -> None:
        known = self._defects.get(name, "")
        if defect and not known:
            _log.error("upstream_gone", upstream=name, reason=defect)
        if known and not defect:
            _log.info("upstream_back", upstream=name)
        self._defects[name] = defect
        if self._up is not None:
            self._up.labels(name).set(0 if defect else 1)

    def _line(self, upstream: OpenAICompatiblePolicy) -> str:
        """What requests meet goes before what the watch saw."""
        if upstream.circuit_open:
            return "failed again and again; is left alone for a while, then tried"
        if upstream.name not in self._defects:
            return "not asked yet"
        return self._defects[upstream.name] or "ok"


async def _defect_of(upstream: OpenAICompatiblePolicy) -> str | None:
    try:
        return await upstream.defect()
    except Exception as error:  # one that nobody foresaw must not end the watch
        return f"asking it failed: {type(error).__name__}"

"""The page of the metrics: whole for the operator, and for a key without the series of other groups."""

import asyncio
import math
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from time import monotonic
from typing import Final

from prometheus_client import CollectorRegistry, Metric, generate_latest
from prometheus_client.registry import Collector

from qguide.server.observability.metrics import Metrics
from qguide.server.settings.learning import LEARNED, LearningSettings, mark_of

KEPT_S: Final = 1.0
_LEARNED: Final = re.compile(rf"{LEARNED}@\d+(-[0-9a-f]{{8}})")


@dataclass(frozen=True, slots=True)
class GroupView(Collector):
    """The metrics as keys of one group may see them.

    Series of the whole server are shown; those of keys, groups and learned Q models if they are the group's own.
    """

    registry: CollectorRegistry
    group: str
    group_of: Callable[[str], str]

    def collect(self) -> Iterator[Metric]:
        """Yield each metric with the series that are shown."""
        for metric in self.registry.collect():
            metric.samples = [sample for sample in metric.samples if self._shows(sample.labels)]
            yield metric

    def _shows(self, labels: Mapping[str, str]) -> bool:
        if "key" in labels and self.group_of(labels["key"]) != self.group:
            return False
        learned = _LEARNED.fullmatch(labels.get("q_model", ""))
        others = learned is not None and learned[1] != mark_of(self.group)
        return labels.get("group", self.group) == self.group and not others


@dataclass(slots=True)
class _Page:
    text: bytes = b""
    fresh_until_s: float = -math.inf
    rendering: asyncio.Task[bytes] | None = None


@dataclass(slots=True)
class Exposition:
    """Metrics as text; scrapes of the same second share one page."""

    metrics: Metrics
    settings: LearningSettings
    kept_s: float = KEPT_S
    clock: Callable[[], float] = monotonic
    _pages: dict[str | None, _Page] = field(default_factory=dict)

    async def page(self, key: str | None = None) -> bytes:
        """The page of this second, in Prometheus text format.

        Args:
            key: the name of the key that sees its own group's series alone; None sees all.
        """
        group = None if key is None else self.settings.group_of(key)
        page = self._pages.setdefault(group, _Page())
        if self.clock() < page.fresh_until_s:
            return page.text
        if page.rendering is None:
            page.rendering = asyncio.create_task(self._render(page, group))
        return await asyncio.shield(page.rendering)

    async def _render(self, page: _Page, group: str | None) -> bytes:
        registry = self.metrics.registry
        try:
            self.metrics.read_load()
            seen = registry if group is None else GroupView(registry, group, self.settings.group_of)
            page.text = await asyncio.to_thread(generate_latest, seen)
            page.fresh_until_s = self.clock() + self.kept_s
            return page.text
        finally:
            page.rendering = None

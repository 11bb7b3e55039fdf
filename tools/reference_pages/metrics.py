"""Reference page of the metrics at `/metrics`."""

from typing import Any, Final

from qguide.server.observability.metrics import Metrics
from tools.reference_pages.markdown import code, page, table

_INTRODUCTION: Final = (
    "Metrics at `/metrics` in Prometheus format. The label `q_model` is the `name@version` of a Q "
    "model; its series are removed with the version. `qguide_redis_up` exists only if Redis is "
    "configured, `qguide_upstream_up` only if there are upstreams."
)


def metrics_page() -> str:
    """Table of the name, type, labels and meaning of every metric."""
    metrics = Metrics()
    metrics.redis_up()
    metrics.upstream_up()
    metrics.watch_load(waiting=int, running=int, cache_share=float)
    rows = [_row(collector) for collector in _collectors(metrics)]
    return page("Metrics", _INTRODUCTION, table(("metric", "type", "labels", "meaning"), rows))


def _collectors(metrics: Metrics) -> list[Any]:
    """All metrics of the registry by name; the registry has no public method for it."""
    found = {id(one): one for one in metrics.registry._names_to_collectors.values()}
    return sorted(found.values(), key=lambda one: str(one._name))


def _row(collector: Any) -> tuple[str, str, str, str]:
    kind = str(collector._type)
    name = f"{collector._name}_total" if kind == "counter" else str(collector._name)
    labels = ", ".join(code(label) for label in collector._labelnames)
    return code(name), kind, labels, str(collector._documentation)

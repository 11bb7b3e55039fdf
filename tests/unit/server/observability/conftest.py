"""The spans of servers, as an exporter in memory gets them."""

import pytest
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from qguide.server.observability.request_context import OtelTracing
from qguide.server.q_models import build


@pytest.fixture
def spans(monkeypatch: pytest.MonkeyPatch) -> InMemorySpanExporter:
    """Exporter of the spans of all servers that are started afterwards."""
    exporter = InMemorySpanExporter()
    tracing = OtelTracing(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(build, "build_tracing", lambda _: tracing)
    return exporter

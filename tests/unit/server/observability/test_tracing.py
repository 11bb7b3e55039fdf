"""Spans of requests and stages, as a collector gets them."""

import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pytest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from qguide.qnet.errors import ConfigError
from qguide.server.chat.fake_openai import FakeUpstream
from qguide.server.observability.request_context import build_tracing
from qguide.server.settings.settings import Settings
from tests.unit.server.conftest import FAKES, Serve, settings_of

BODY = {"messages": [{"role": "user", "content": "a secret place"}], "num_candidates": 2}


def named(spans: InMemorySpanExporter) -> dict[str, ReadableSpan]:
    return {span.name: span for span in spans.get_finished_spans()}


def test_a_request_is_a_span_with_its_stages_within(serve: Serve, spans: InMemorySpanExporter) -> None:
    trace_id = "0af7651916cd43dd8448eb211c80319c"
    headers = {"traceparent": f"00-{trace_id}-b7ad6b7169203331-01", "X-Request-ID": "traced"}
    assert serve().post("/v1/act", json=BODY, headers=headers).status_code == 200
    by_name = named(spans)
    assert set(by_name) == {"POST /v1/act", "sample", "score"}
    request = by_name["POST /v1/act"]
    assert request.attributes is not None
    assert request.attributes["http.response.status_code"] == 200
    assert request.attributes["qguide.request_id"] == "traced"
    assert format(request.context.trace_id, "032x") == trace_id
    for stage in ("sample", "score"):
        parent = by_name[stage].parent
        assert parent is not None
        assert parent.span_id == request.context.span_id
    sampled, scored = by_name["sample"].end_time, by_name["score"].start_time
    assert sampled is not None
    assert scored is not None
    assert sampled <= scored


def test_a_paraphrase_is_a_span_of_its_own(serve: Serve, spans: InMemorySpanExporter) -> None:
    client = serve(FAKES.model_copy(update={"paraphraser": "scripted"}))
    assert client.post("/v1/act", json=BODY | {"perturb": True}).status_code == 200
    assert "paraphrase" in named(spans)


def test_a_failed_stage_says_its_type_and_nothing_of_the_prompt(serve: Serve, spans: InMemorySpanExporter) -> None:
    # The embedded Q model refuses what does not fit, with numbers and names in the message.
    settings = Settings(policy="scripted", q_models={"embedded": "embedded"})
    long = {"messages": [{"role": "user", "content": "secret " * 5000}], "candidates": ["go"]}
    assert serve(settings).post("/v1/score", json=long).status_code == 400
    scored = named(spans)["score"]
    assert scored.attributes == {"error.type": "HistoryTooLongError"}
    written = "".join(span.to_json() for span in spans.get_finished_spans())
    assert "secret" not in written
    assert "shorten" not in written


def test_an_upstream_is_asked_within_the_stages_span(
    serve: Serve, spans: InMemorySpanExporter, address: tuple[FakeUpstream, str], upstream: FakeUpstream
) -> None:
    assert serve(settings_of(address[1])).post("/v1/act", json=BODY).status_code == 200
    sampled = named(spans)["sample"].context
    parent = f"00-{sampled.trace_id:032x}-{sampled.span_id:016x}-"
    assert upstream.traces
    assert all(trace and trace.startswith(parent) for trace in upstream.traces)


def test_without_a_collector_the_callers_trace_is_passed_on(
    serve: Serve, address: tuple[FakeUpstream, str], upstream: FakeUpstream
) -> None:
    client = serve(settings_of(address[1]))
    given = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    for headers, passed_on in (({"traceparent": given}, given), ({"traceparent": "not a trace"}, None), ({}, None)):
        upstream.traces.clear()
        assert client.post("/v1/act", json=BODY, headers=headers).status_code == 200
        assert set(upstream.traces) == {passed_on}


@pytest.fixture
def collector() -> Iterator[tuple[str, list[tuple[str, bytes]]]]:
    """A collector's address and what it was sent."""
    sent: list[tuple[str, bytes]] = []

    class Collector(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            sent.append((self.path, self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(200)
            self.end_headers()

        def log_message(self, format: str, *args: Any) -> None:
            """Say nothing."""

    with HTTPServer(("127.0.0.1", 0), Collector) as http:
        thread = threading.Thread(target=http.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{http.server_port}", sent
        http.shutdown()
        thread.join()


@pytest.mark.parametrize("path", ["", "/", "/v1/traces"])
def test_spans_reach_a_collector_before_the_server_ends(
    path: str, collector: tuple[str, list[tuple[str, bytes]]]
) -> None:
    from fastapi.testclient import TestClient

    from qguide.server.app import create_app

    url, sent = collector
    settings = Settings(**FAKES.model_dump() | {"otlp_endpoint": f"{url}{path}"})
    with TestClient(create_app(settings), "http://localhost") as client:
        client.post("/v1/act", json=BODY)
    ((asked, spans),) = sent
    assert asked == "/v1/traces"
    for name in (b"POST /v1/act", b"sample", b"score"):
        assert name in spans
    assert b"secret" not in spans


def test_without_the_extra_the_reason_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.trace.export", None)
    with pytest.raises(ConfigError, match=r"install '\.\[otel\]'"):
        build_tracing("http://127.0.0.1:4318")

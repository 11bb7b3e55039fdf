"""Spans of requests follow the GenAI conventions, and hold no text."""

from typing import Any

import pytest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from qguide.server.chat.fake_openai import FakeUpstream
from qguide.server.observability.request_context import EVALUATION
from tests.unit.server.conftest import Serve, settings_of

MESSAGES = [{"role": "user", "content": "a secret place"}]
STEP: dict[str, Any] = {
    "messages": MESSAGES,
    "num_candidates": 3,
    "temperature": 0.5,
    "max_tokens": 40,
    "episode_id": "game-7",
}


def span_of(spans: InMemorySpanExporter, path: str) -> ReadableSpan:
    """The one span of a request."""
    [span] = [one for one in spans.get_finished_spans() if one.name == f"POST {path}"]
    assert "secret" not in span.to_json()
    return span


def evaluations(span: ReadableSpan) -> list[dict[str, Any]]:
    """Attributes of the span's evaluations."""
    assert {event.name for event in span.events} <= {EVALUATION}
    return [dict(event.attributes or {}) for event in span.events]


@pytest.mark.parametrize(("path", "more"), [("/v1/act", {}), ("/v1/chat/completions", {"model": "default"})])
def test_a_guided_step_is_a_chat_with_m_choices_and_an_evaluation_of_each(
    serve: Serve, spans: InMemorySpanExporter, address: tuple[FakeUpstream, str], path: str, more: dict[str, Any]
) -> None:
    body: dict[str, Any] = STEP
    if more:
        chat = {"temperature": 0.5, "max_tokens": 40, "messages": MESSAGES}
        body = {**more, **chat, "qguide": {"num_candidates": 3, "episode_id": "game-7"}}
    answer = serve(settings_of(address[1])).post(path, json=body)
    assert answer.status_code == 200, answer.text
    span = span_of(spans, path)
    attributes = dict(span.attributes or {})
    expected = {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "qguide",
        "gen_ai.request.choice.count": 3,
        "gen_ai.request.temperature": 0.5,
        "gen_ai.request.max_tokens": 40,
        "gen_ai.conversation.id": "game-7",
    }
    assert expected.items() <= attributes.items()
    assert attributes["gen_ai.request.model"] == "fake-1"
    found = evaluations(span)
    assert [one["qguide.candidate.index"] for one in found] == [0, 1, 2]
    assert {one["gen_ai.evaluation.name"] for one in found} == {"q_value"}
    labels = [one["gen_ai.evaluation.score.label"] for one in found]
    assert labels.count("chosen") == 1
    if path == "/v1/act":
        usage = answer.json()["usage"]
        assert attributes["gen_ai.usage.input_tokens"] == usage["prompt_tokens"]
        assert attributes["gen_ai.usage.output_tokens"] == usage["completion_tokens"]
        q_values = [candidate["q_value"] for candidate in answer.json()["candidates"]]
        assert [one["gen_ai.evaluation.score.value"] for one in found] == q_values
        assert labels.index("chosen") == answer.json()["chosen"]


def test_scores_of_the_callers_candidates_are_evaluations_too(serve: Serve, spans: InMemorySpanExporter) -> None:
    body = {"messages": MESSAGES, "candidates": ["look", "wait"], "episode_id": "game-7"}
    answer = serve().post("/v1/score", json=body).json()
    span = span_of(spans, "/v1/score")
    attributes = dict(span.attributes or {})
    assert attributes["gen_ai.conversation.id"] == "game-7"
    assert "gen_ai.operation.name" not in attributes
    found = evaluations(span)
    q_values = [score["q_value"] for score in answer["scores"]]
    assert [one["gen_ai.evaluation.score.value"] for one in found] == q_values
    assert {one["qguide.q_model"] for one in found} == {"demo@0"}


def test_a_failed_draw_still_says_what_was_asked(
    serve: Serve, spans: InMemorySpanExporter, address: tuple[FakeUpstream, str], upstream: FakeUpstream
) -> None:
    upstream.fault = "401"
    assert serve(settings_of(address[1])).post("/v1/act", json=STEP).status_code == 502
    span = span_of(spans, "/v1/act")
    attributes = dict(span.attributes or {})
    assert attributes["gen_ai.request.choice.count"] == 3
    assert "gen_ai.usage.input_tokens" not in attributes
    assert evaluations(span) == []

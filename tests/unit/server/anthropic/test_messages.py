"""Messages through the server: guidance, refusals in Anthropic's shape, streams."""

import json
from typing import Any

import pytest
from fastapi.testclient import TestClient

from qguide.server.chat.fake_openai import DEFAULT_REPLIES, FakeUpstream
from qguide.server.q_models.build import build_models
from qguide.server.q_models.registry import Models
from qguide.server.settings.remote_models import Upstream
from qguide.server.settings.settings import Settings
from tests.unit.server.conftest import Serve, settings_of

USER = {"role": "user", "content": "find the mug"}
IMAGE = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "aGk="}}
TOOL = {"name": "go", "input_schema": {"type": "object", "properties": {"to": {"enum": ["desk"]}}}}


def post(client: TestClient, path: str = "", headers: Any = None, **body: Any) -> Any:
    asked = {"messages": [USER]} | ({} if path else {"max_tokens": 9}) | body
    return client.post(f"/v1/messages{path}", json=asked, headers=headers)


def ask(client: TestClient, **body: Any) -> dict[str, Any]:
    response = post(client, **body)
    assert response.status_code == 200, response.text
    answer: dict[str, Any] = response.json()
    return answer


def refusal(response: Any, status: int) -> dict[str, Any]:
    assert response.status_code == status, response.text
    body = response.json()
    assert body["type"] == "error"
    assert body["request_id"] == response.headers["Request-ID"]
    error: dict[str, Any] = body["error"]
    assert set(error) == {"type", "message", "details"}
    return error


def events_of(response: Any) -> list[dict[str, Any]]:
    assert response.headers["content-type"].startswith("text/event-stream")
    *events, rest = response.text.split("\n\n")
    assert rest == ""
    read = []
    for event in events:
        name, data = event.split("\n")
        read.append(json.loads(data.removeprefix("data: ")))
        assert name == f"event: {read[-1]['type']}"
    return read


def test_the_best_candidate_is_the_content(guided: TestClient, upstream: FakeUpstream) -> None:
    answer = ask(guided, system="Be brief.", qguide={"return_candidates": True, "num_candidates": 3})
    assert answer["content"] == [{"type": "text", "text": DEFAULT_REPLIES[2]}]
    assert answer["model"] == "demo"
    assert answer["qguide"]["q_values"] == [0.5, 0.25, 0.75]
    assert len(answer["qguide"]["candidates"]) == 3
    [asked] = upstream.asked
    assert asked == {
        "model": "fake-1",
        "messages": [{"role": "system", "content": "Be brief."}, USER],
        "max_tokens": 9,
        "n": 3,
    }


def test_options_come_as_headers_too(guided: TestClient) -> None:
    headers = {"X-QGuide-Num-Candidates": "4", "anthropic-version": "2023-06-01"}
    assert post(guided, headers=headers).json()["qguide"]["num_candidates"] == 4


def test_images_reach_the_upstream_and_the_q_model_reads_the_text(guided: TestClient, upstream: FakeUpstream) -> None:
    text = {"type": "text", "text": "what is it?"}
    guidance = ask(guided, messages=[{"role": "user", "content": [IMAGE, text]}])["qguide"]
    assert guidance["guided"] is True
    assert "image_url" in guidance["warnings"][0]
    [asked] = upstream.asked
    parts = asked["messages"][0]["content"]
    assert [part["type"] for part in parts] == ["image_url", "text"]


def test_an_image_alone_is_answered_without_guidance_unless_that_is_an_error(guided: TestClient) -> None:
    messages = [{"role": "user", "content": [IMAGE]}]
    guidance = ask(guided, messages=messages)["qguide"]
    assert guidance["guided"] is False
    assert "image_url" in guidance["unguided_reason"]
    options = {"fallback": "error"}
    error = refusal(post(guided, messages=messages, qguide=options), 400)
    assert "type 'image_url'; Q models read only text" in error["message"]


@pytest.mark.parametrize(
    ("body", "status", "kind", "code", "said"),
    [
        ({"model": "gpt-9"}, 404, "not_found_error", "unknown_model", "this server has demo"),
        ({"messages": []}, 400, "invalid_request_error", "malformed_history", "is empty"),
        ({"thread": {"type": "continue"}}, 400, "invalid_request_error", "thread_unsupported_request", "thread"),
        ({"messages": 3}, 400, "invalid_request_error", "malformed_body", "valid list"),
        ({"max_tokens": None}, 400, "invalid_request_error", "malformed_body", "max_tokens"),
        ({"qguide": {"m": 3}}, 400, "invalid_request_error", "malformed_body", "qguide.m"),
        (
            {"tools": [{"name": "memory", "type": "memory_20990101"}]},
            400,
            "invalid_request_error",
            "unsupported_parameter",
            "is no custom tool with an input_schema",
        ),
        (
            {"tools": [{"type": "function", "function": {"name": "look", "parameters": {}}}]},
            400,
            "invalid_request_error",
            "unsupported_parameter",
            '{"name": …, "description": …, "input_schema": …}',
        ),
        ({"num_candidates": 3}, 400, "invalid_request_error", "unsupported_parameter", '{"num_candidates": …}'),
        (
            {"messages": [USER] * 17_000},
            400,
            "invalid_request_error",
            "history_too_long",
            "prompt is too long: messages has 17,000 entries",
        ),
    ],
)
def test_a_wrong_request_is_explained_in_anthropics_shape(
    guided: TestClient, body: Any, status: int, kind: str, code: str, said: str
) -> None:
    error = refusal(post(guided, **body), status)
    assert (error["type"], error["details"]["error_code"]) == (kind, code)
    assert said in error["message"]


@pytest.mark.parametrize(
    ("parameter", "value", "name"),
    [
        ("tools", [TOOL], "tools"),
        ("stop_sequences", ["x"], "stop_sequences"),
        ("top_k", 3, "top_k"),
        ("output_config", {"format": {"type": "json_schema", "schema": {}}}, "output_config.format"),
    ],
)
def test_what_a_policy_in_this_process_cannot_do_is_refused_by_anthropics_name(
    client: TestClient, parameter: str, value: Any, name: str
) -> None:
    error = refusal(post(client, **{parameter: value}), 400)
    assert error["details"]["error_code"] == "unsupported_parameter"
    assert f"does not support {name!r}" in error["message"]


@pytest.mark.parametrize(("fault", "status", "kind"), [("500", 502, "api_error"), ("401", 502, "api_error")])
def test_an_upstreams_failure_is_the_apis(
    guided: TestClient, upstream: FakeUpstream, fault: Any, status: int, kind: str
) -> None:
    upstream.fault = fault
    error = refusal(post(guided), status)
    assert error["type"] == kind
    assert "secret" not in error["message"]


def dead_scorer(settings: Settings) -> Models:
    models = build_models(settings)
    models.runtime.thread.close()
    return models


def test_without_a_scorer_it_is_unguided_or_overloaded_where_that_was_asked_for(
    serve: Serve, address: tuple[FakeUpstream, str], upstream: FakeUpstream
) -> None:
    client = serve(settings_of(address[1]), dead_scorer)
    assert ask(client)["qguide"]["guided"] is False
    response = post(client, qguide={"fallback": "error"})
    error = refusal(response, 503)
    assert (error["type"], error["details"]["error_code"]) == ("overloaded_error", "scorer_unavailable")
    assert int(response.headers["Retry-After"]) >= 1


def test_a_stream_has_named_events_and_the_guidance_first(guided: TestClient) -> None:
    events = events_of(post(guided, stream=True, tools=[TOOL]))
    assert [event["type"] for event in events] == [
        "message_start",
        "content_block_start",
        "content_block_delta",
        "content_block_stop",
        "message_delta",
        "message_stop",
    ]
    assert events[0]["message"]["qguide"]["reason"] == "unanimous"
    assert events[2]["delta"] == {"type": "input_json_delta", "partial_json": '{"to": "desk"}'}


def test_a_waiting_stream_pings_and_says_its_error_as_an_event(
    serve: Serve, address: tuple[FakeUpstream, str], upstream: FakeUpstream
) -> None:
    upstream.fault = "hang"
    silent = Upstream.model_validate({"url": address[1], "model": "m", "timeout_s": 1.0})
    client = serve(settings_of(address[1], upstreams={"demo": silent}, heartbeat_s=0.05))
    *pings, error = events_of(post(client, stream=True))
    assert {ping["type"] for ping in pings} == {"ping"}
    assert error["error"]["type"] == "timeout_error"
    assert error["request_id"]


def test_tokens_are_counted_by_the_policy_or_else_refused(client: TestClient, tiny_client: TestClient) -> None:
    counted = post(tiny_client, "/count_tokens").json()
    assert counted["qguide"] == {"counted_by": "policy", "name": "tiny-policy", "exact": True}
    assert counted["input_tokens"] == ask(tiny_client)["usage"]["input_tokens"]
    longer = post(tiny_client, "/count_tokens", system="Be brief.", tools=[TOOL]).json()
    assert longer["input_tokens"] > counted["input_tokens"]
    assert longer["qguide"]["exact"] is False
    many = [{"role": "user", "content": "word " * 5000}]
    assert post(tiny_client, "/count_tokens", messages=many).json()["input_tokens"] > 5000
    error = refusal(post(client, "/count_tokens"), 400)
    assert "nothing can count" in error["message"]
    image = [{"role": "user", "content": [IMAGE]}]
    assert "read only text" in refusal(post(client, "/count_tokens", messages=image), 400)["message"]


@pytest.mark.parametrize("value", [float("nan"), float("inf"), "half \ud800"])
@pytest.mark.parametrize("stream", [False, True])
def test_arguments_that_json_cannot_carry_come_as_they_were_written(
    guided: TestClient, upstream: FakeUpstream, value: object, stream: bool
) -> None:
    upstream.calls = [("go", {"to": value})]
    said = json.dumps({"to": value})
    response = post(guided, tools=[TOOL], stream=stream)
    assert response.status_code == 200, response.text
    if stream:
        events = events_of(response)
        assert events[-1]["type"] == "message_stop"
        filled = [e["delta"] for e in events if e["type"] == "content_block_delta"]
        assert json.loads(filled[0]["partial_json"]) == {"INVALID_JSON": said}
    else:
        [block] = response.json()["content"]
        assert block["input"] == {"INVALID_JSON": said}


@pytest.mark.parametrize("path", ["", "/count_tokens"])
def test_a_schema_that_is_too_deep_for_a_chat_completion_is_refused(guided: TestClient, path: str) -> None:
    schema: dict[str, Any] = {"type": "object"}
    for _ in range(96):
        schema = {"items": schema}
    error = refusal(post(guided, path, tools=[{"name": "go", "input_schema": schema}]), 400)
    assert error["message"].startswith("lists and objects are nested more than 100 levels deep")

"""Chat completions that cannot be given, or not as they were asked for."""

from typing import Any

import pytest
from fastapi.testclient import TestClient
from pydantic import SecretStr

from qguide.server.app import create_app
from qguide.server.chat.fake_openai import DEFAULT_REPLIES, FakeUpstream
from qguide.server.q_models.build import build_models
from qguide.server.q_models.registry import Models
from qguide.server.settings.remote_models import Upstream
from qguide.server.settings.settings import Settings
from tests.support.chats import TOOL, USER, ask, refusal
from tests.support.serving import serving_app
from tests.unit.server.conftest import Serve, settings_of


@pytest.mark.parametrize(
    ("header", "value", "said"),
    [
        ("X-QGuide-Num-Candidates", "many", "X-QGuide-Num-Candidates: Input should be a valid"),
        ("X-QGuide-Colour", "red", "X-QGuide-Colour: Extra inputs are not permitted; options are"),
        ("X-QGuide-Fallback", "never", "X-QGuide-Fallback: Input should be"),
        ("X-QGuide-Policies", "large=x", "unable to parse string as an integer (it is 'large=x')"),
    ],
)
def test_a_header_that_is_no_option_is_explained(guided: TestClient, header: str, value: str, said: str) -> None:
    response = guided.post("/v1/chat/completions", json={"messages": [USER]}, headers={header: value})
    assert response.status_code == 400
    assert said in response.json()["error"]["message"]


def dead_scorer(settings: Settings) -> Models:
    models = build_models(settings)
    models.runtime.thread.close()
    return models


def test_without_a_scorer_the_first_candidate_comes_flagged(
    serve: Serve, address: tuple[FakeUpstream, str], upstream: FakeUpstream
) -> None:
    client = serve(settings_of(address[1]), dead_scorer)
    assert refusal(client, 503, qguide={"fallback": "error"})["code"] == "scorer_unavailable"
    answer = ask(client)
    assert answer["choices"][0]["message"]["content"] == DEFAULT_REPLIES[0]
    guidance = answer["qguide"]
    assert (guidance["guided"], guidance["reason"]) == (False, "fallback")
    assert "dead" in guidance["unguided_reason"] or "closed" in guidance["unguided_reason"]
    assert guidance["q_values"] is None
    assert 'qguide_unguided_total{q_model="demo@0"} 1.0' in client.get("/metrics").text
    acted = client.post("/v1/act", json={"messages": [USER]}).json()
    assert (acted["guided"], acted["chosen"], acted["reason"]) == (False, 0, "fallback")
    assert {candidate["q_value"] for candidate in acted["candidates"]} == {None}


def test_the_operator_decides_on_the_fallback_and_a_request_before_the_operator(
    serve: Serve, address: tuple[FakeUpstream, str], upstream: FakeUpstream
) -> None:
    client = serve(settings_of(address[1], fallback="first"), dead_scorer)
    assert ask(client)["qguide"]["guided"] is False
    refusal(client, 503, qguide={"fallback": "error"})
    strict = serve(settings_of(address[1], fallback="error"), dead_scorer)
    refusal(strict, 503)
    assert ask(strict, qguide={"fallback": "first"})["qguide"]["guided"] is False


@pytest.mark.parametrize(
    ("fault", "status", "code"),
    [("503", 503, "upstream_unavailable"), ("garbage", 502, "upstream_failed"), ("401", 502, "upstream_failed")],
)
def test_an_upstreams_failure_is_said_in_openais_shape(
    guided: TestClient, upstream: FakeUpstream, fault: Any, status: int, code: str
) -> None:
    upstream.fault = fault
    error = refusal(guided, status)
    assert (error["code"], error["type"]) == (code, "server_error")
    assert "secret" not in error["message"]


@pytest.mark.parametrize(
    ("fault", "status", "code", "kind"),
    [
        ("429", 429, "rate_limit_exceeded", "requests"),
        ("quota", 429, "insufficient_quota", "requests"),
        ("policy", 400, "content_policy_violation", "invalid_request_error"),
        ("context", 400, "context_length_exceeded", "invalid_request_error"),
        ("reasoning", 400, "upstream_refused", "invalid_request_error"),
    ],
)
def test_an_upstreams_refusal_keeps_its_status_code_and_type(
    guided: TestClient, upstream: FakeUpstream, fault: Any, status: int, code: str, kind: str
) -> None:
    upstream.fault = fault
    answer = guided.post("/v1/chat/completions", json={"messages": [USER], "max_tokens": 5})
    error = answer.json()["error"]
    assert (answer.status_code, error["code"], error["type"]) == (status, code, kind)
    assert ("retry-after" in answer.headers) == (status == 429)
    assert ("try later" in error["message"]) == (fault == "429")
    assert ("quota is used up (insufficient_quota)" in error["message"]) == (fault == "quota")


def test_a_temperature_that_the_model_refuses_is_left_out_and_told(guided: TestClient, upstream: FakeUpstream) -> None:
    upstream.fault = "reasoning"
    for _ in range(2):
        told = ask(guided, temperature=0.5)["qguide"]
        assert told["warnings"] == ["left out, because the upstream refuses it: temperature"]
    drawn = [body.get("temperature") for body in upstream.asked]
    assert drawn == [0.5, None, None]


def test_an_upstreams_retry_after_is_passed_on_in_every_dialect(
    serve: Serve, address: tuple[FakeUpstream, str], upstream: FakeUpstream
) -> None:
    upstream.fault = "429"
    client = serve(settings_of(address[1]))
    chat = client.post("/v1/chat/completions", json={"messages": [USER]})
    act = client.post("/v1/act", json={"messages": [USER]})
    assert (chat.status_code, act.status_code) == (429, 429)
    assert (chat.headers["retry-after"], act.headers["retry-after"]) == ("1", "1")
    assert act.json()["error"]["code"] == "upstream_busy", "our own words on our own endpoint"


@pytest.mark.parametrize(("fault", "requests"), [("429", 2), ("quota", 1)])
def test_a_rate_limit_is_waited_for_and_a_used_up_quota_is_not(
    serve: Serve, address: tuple[FakeUpstream, str], upstream: FakeUpstream, fault: Any, requests: int
) -> None:
    upstream.fault = fault
    served = Upstream.model_validate({"url": address[1], "model": "m", "retries": 1})
    client = serve(settings_of(address[1], upstreams={"demo": served}))
    refusal(client, 429)
    assert len(upstream.asked) == requests


@pytest.mark.parametrize("stream", [False, True])
def test_clients_know_a_history_that_is_too_long_by_its_words(
    guided: TestClient, upstream: FakeUpstream, stream: bool
) -> None:
    upstream.fault = "context"
    error = refusal(guided, 400, stream=stream)
    assert error["code"] == "context_length_exceeded"
    assert "this model's maximum context length is" in error["message"], "LiteLLM and CrewAI"
    assert "prompt is too long" in error["message"], "LangChain"
    assert "exceeds the context window" in error["message"], "LangChain, in a stream"


def test_langchain_raises_its_own_error_for_a_context_overflow(
    address: tuple[FakeUpstream, str], upstream: FakeUpstream
) -> None:
    from langchain_core.exceptions import ContextOverflowError
    from langchain_openai import ChatOpenAI

    upstream.fault = "context"
    with serving_app(create_app(settings_of(address[1]))) as url:
        key = SecretStr("unused")
        model = ChatOpenAI(base_url=f"{url}/v1", api_key=key, model="demo", max_retries=0)
        with pytest.raises(ContextOverflowError):
            model.invoke("find the mug")
        with pytest.raises(ContextOverflowError):
            list(model.stream("find the mug"))


def test_a_silent_upstream_is_504_where_its_patience_is_shorter(
    serve: Serve, address: tuple[FakeUpstream, str], upstream: FakeUpstream
) -> None:
    upstream.fault = "hang"
    served = Upstream.model_validate({"url": address[1], "model": "m", "timeout_s": 0.1})
    client = serve(settings_of(address[1], upstreams={"demo": served}))
    assert refusal(client, 504)["code"] == "upstream_timeout"


def test_where_all_connections_are_busy_the_caller_may_come_back(
    serve: Serve, address: tuple[FakeUpstream, str], upstream: FakeUpstream
) -> None:
    upstream.fault = "hang"
    served = {"url": address[1], "model": "m", "n": "parallel", "max_connections": 1}
    patient = Upstream.model_validate(served | {"connect_timeout_s": 2.0, "retries": 2})
    client = serve(settings_of(address[1], upstreams={"demo": patient}))
    body = {"messages": [USER], "qguide": {"num_candidates": 2}}
    answer = client.post("/v1/chat/completions", json=body)
    assert (answer.status_code, answer.headers["Retry-After"]) == (503, "1")
    assert "raise its max_connections" in answer.json()["error"]["message"]
    assert len(upstream.asked) == 1


@pytest.mark.parametrize(
    ("body", "status", "code", "param", "said"),
    [
        ({"model": "gpt-9"}, 404, "model_not_found", None, "this server has demo"),
        ({"messages": []}, 400, "malformed_history", None, "messages is empty"),
        ({"messages": 3}, 400, "malformed_body", "messages", "valid list"),
        ({"temperature": 9}, 400, "malformed_body", "temperature", "less than or equal"),
        ({"qguide": {"m": 3}}, 400, "malformed_body", "qguide.m", "not permitted"),
        ({"qguide": {"num_candidates": 9}}, 400, "invalid_candidates", None, "ask for 1 to 8"),
        (
            {"n": 3, "qguide": {"num_candidates": 2}},
            400,
            "invalid_candidates",
            None,
            "n is 3 but qguide.num_candidates is 2",
        ),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url"}]}], "qguide": {"fallback": "error"}},
            400,
            "malformed_history",
            None,
            "a content part of type 'image_url'; Q models read only text",
        ),
    ],
)
def test_a_wrong_request_is_explained_in_openais_shape(
    guided: TestClient, body: Any, status: int, code: str, param: str | None, said: str
) -> None:
    error = refusal(guided, status, **body)
    assert (error["code"], error["param"]) == (code, param)
    assert error["type"] == "invalid_request_error"
    assert said in error["message"]


@pytest.mark.parametrize(
    ("parameter", "value"),
    [
        ("tools", [TOOL]),
        ("logprobs", True),
        ("response_format", {"type": "json_object"}),
        ("stop", ["x"]),
        ("top_k", 3),
    ],
)
def test_what_a_policy_in_this_process_cannot_do_is_refused_by_name(
    client: TestClient, parameter: str, value: Any
) -> None:
    error = refusal(client, 400, **{parameter: value})
    assert (error["code"], error["param"]) == ("unsupported_parameter", parameter)
    assert f"does not support {parameter!r}; leave the parameter out or choose" in error["message"]

"""POST /v1/chat/completions."""

import json
from typing import Any

import pytest
from fastapi.testclient import TestClient

from qnet.batching import DeviceThread
from qnet.policies.scripted import ScriptedPolicy
from qnet.scoring import ScriptedScorer
from server.completions import chunks_of
from server.fake_upstream import DEFAULT_REPLIES, FakeUpstream
from server.models import Models, build_models
from server.settings import SCRIPTED, Settings, Upstream
from tests.unit.server.conftest import FAKES, Serve, models_of

USER = {"role": "user", "content": "find the mug"}
TOOL = {
    "type": "function",
    "function": {
        "name": "go",
        "parameters": {"type": "object", "properties": {"to": {"enum": ["desk", "shelf"]}}},
    },
}


def settings_of(url: str, **more: Any) -> Settings:
    served = Upstream.model_validate({"url": url, "model": "fake-1", "retries": 0})
    return FAKES.model_copy(update={"upstreams": {"demo": served}, "policy": "demo"} | more)


@pytest.fixture
def guided(serve: Serve, address: tuple[FakeUpstream, str], upstream: FakeUpstream) -> TestClient:
    """A server in front of the fake upstream, with the scripted Q model."""
    return serve(settings_of(address[1]))


def ask(client: TestClient, **body: Any) -> dict[str, Any]:
    response = client.post("/v1/chat/completions", json={"messages": [USER]} | body)
    assert response.status_code == 200, response.text
    answer: dict[str, Any] = response.json()
    return answer


def refusal(client: TestClient, status: int, **body: Any) -> dict[str, Any]:
    response = client.post("/v1/chat/completions", json={"messages": [USER]} | body)
    assert response.status_code == status, response.text
    error: dict[str, Any] = response.json()["error"]
    assert set(error) == {"message", "type", "param", "code", "request_id"}
    return error


def events_of(client: TestClient, **body: Any) -> list[dict[str, Any]]:
    asked = {"messages": [USER], "stream": True} | body
    response = client.post("/v1/chat/completions", json=asked)
    assert response.status_code == 200, response.text
    assert response.headers["content-type"].startswith("text/event-stream")
    *events, end, rest = response.text.split("\n\n")
    assert (end, rest) == ("data: [DONE]", "")
    return [json.loads(e.removeprefix("data: ")) for e in events if not e.startswith(":")]


def test_the_best_of_m_is_an_ordinary_completion(
    guided: TestClient, upstream: FakeUpstream
) -> None:
    answer = ask(guided, model="demo", qguide={"num_candidates": 3})
    assert (answer["object"], answer["model"]) == ("chat.completion", "demo")
    assert answer["id"].startswith("chatcmpl-")
    [choice] = answer["choices"]
    assert choice == {
        "index": 0,
        "message": {"role": "assistant", "content": DEFAULT_REPLIES[2], "refusal": None},
        "logprobs": None,
        "finish_reason": "stop",
    }
    assert [body["n"] for body in upstream.asked] == [3]
    guidance = answer["qguide"]
    assert guidance["q_values"] == [0.5, 0.25, 0.75]
    assert (guidance["chosen"], guidance["guided"]) == (2, True)
    assert (guidance["reason"], guidance["q_model"]) == ("highest_q", "demo")
    assert "candidates" not in guidance


def test_usage_is_what_all_candidates_cost(guided: TestClient) -> None:
    answer = ask(guided, messages=[USER, {"role": "user", "content": "now"}])
    words = sum(len(DEFAULT_REPLIES[k % 3].split()) for k in range(5))
    assert answer["usage"] == {
        "prompt_tokens": 4,
        "completion_tokens": words,
        "total_tokens": 4 + words,
        "prompt_tokens_details": {"cached_tokens": 3},
    }
    usage = answer["qguide"]["usage"]
    assert usage["sample"] == {
        "prompt_tokens": 4,
        "cached_tokens": 3,
        "completion_tokens": words,
    }
    distinct = sum(len(reply.split()) for reply in DEFAULT_REPLIES)
    assert usage["score"] == {"scored_tokens": 4 + distinct, "cached_tokens": 0}
    timings = answer["qguide"]["timings_ms"]
    assert timings["total"] >= timings["sample"] + timings["score"] > 0


def test_n_returns_the_n_best_in_order_of_q(guided: TestClient) -> None:
    answer = ask(guided, n=3, qguide={"num_candidates": 5})
    contents = [choice["message"]["content"] for choice in answer["choices"]]
    assert contents == [DEFAULT_REPLIES[2], DEFAULT_REPLIES[0], DEFAULT_REPLIES[1]]
    assert [choice["index"] for choice in answer["choices"]] == [0, 1, 2]
    assert answer["qguide"]["returned"] == [2, 0, 1]


def test_n_above_the_default_draws_as_many(guided: TestClient) -> None:
    assert len(ask(guided, n=7)["choices"]) == 7


def test_tool_calls_are_candidates_and_the_best_is_returned_with_its_id(
    serve: Serve, address: tuple[FakeUpstream, str], upstream: FakeUpstream
) -> None:
    def build(settings: Settings) -> Models:
        models = build_models(settings)
        scripted = models_of(ScriptedPolicy(), ScriptedScorer({'"shelf"': 0.9}), DeviceThread())
        models.runtime.thread.close()
        models.runtime.shadow_thread.close()
        return Models(
            scripted.runtime, models.policy, scripted.q_models, upstreams=models.upstreams
        )

    client = serve(settings_of(address[1]), build)
    answer = ask(client, tools=[TOOL], tool_choice="required", qguide={"return_candidates": True})
    [choice] = answer["choices"]
    [call] = choice["message"]["tool_calls"]
    assert choice["finish_reason"] == "tool_calls"
    assert choice["message"]["content"] is None
    assert call["function"] == {"name": "go", "arguments": '{"to": "shelf"}'}
    assert call["id"].startswith("call_")
    assert answer["qguide"]["distinct_candidates"] == 2
    assert answer["qguide"]["q_values"] == [0.0, 0.9, 0.0, 0.9, 0.0]
    assert len(answer["qguide"]["candidates"]) == 5
    assert upstream.asked[0]["tool_choice"] == "required"

    # The result goes back as agents send it, with what else the answer's message had.
    result = {"role": "tool", "content": "a mug", "tool_call_id": call["id"]}
    ask(client, messages=[USER, choice["message"], result], tools=[TOOL])
    assert upstream.asked[1]["messages"][1:] == [
        {k: v for k, v in choice["message"].items() if k != "refusal"},
        result,
    ]


def test_unknown_parameters_and_fields_of_turns_reach_the_upstream(
    guided: TestClient, upstream: FakeUpstream
) -> None:
    turn = USER | {"name": "anna"}
    more = {"top_k": 7, "stop": ["\n"], "user": "u", "max_completion_tokens": 5, "seed": 3}
    ask(guided, messages=[turn], **more)
    [asked] = upstream.asked
    assert asked == more | {"model": "fake-1", "messages": [turn], "n": 5}


def test_logprobs_are_passed_on(guided: TestClient) -> None:
    [choice] = ask(guided, logprobs=True)["choices"]
    tokens = [row["token"] for row in choice["logprobs"]["content"]]
    assert tokens == choice["message"]["content"].split()


@pytest.mark.parametrize("streamed", [False, True])
def test_what_else_the_upstream_says_is_passed_on(guided: TestClient, streamed: bool) -> None:
    asked: dict[str, Any] = {
        "seed": 0,
        "return_token_ids": True,
        "reasoning_effort": "low",
        "qguide": {"num_candidates": 3},
    }
    if streamed:
        usage = {"stream_options": {"include_usage": True}}
        events = events_of(guided, **asked, **usage)
        assert {one["system_fingerprint"] for one in events} == {"fp_fake"}
        answer, choice = events[-1], events[-2]["choices"][0]
    else:
        answer = ask(guided, **asked)
        assert answer["system_fingerprint"] == "fp_fake"
        choice = answer["choices"][0]
    assert choice["token_ids"] == list(range(len(DEFAULT_REPLIES[2].split())))
    assert "stop_reason" not in choice
    assert answer["usage"]["completion_tokens_details"] == {"reasoning_tokens": 3}


def test_a_header_goes_before_the_body_and_the_body_before_the_default(
    guided: TestClient, upstream: FakeUpstream
) -> None:
    body = {
        "messages": [USER],
        "temperature": 0.1,
        "qguide": {"num_candidates": 2, "temperature": 0.9, "q_model": "other"},
    }
    headers = {"X-QGuide-Num-Candidates": "4", "X-QGuide-Return-Candidates": "true"}
    answer = guided.post("/v1/chat/completions", json=body, headers=headers).json()
    assert len(answer["qguide"]["candidates"]) == answer["qguide"]["num_candidates"] == 4
    assert answer["qguide"]["q_model"] == "other"
    assert upstream.asked[0]["temperature"] == 0.9


@pytest.mark.parametrize(
    ("header", "value", "said"),
    [
        ("X-QGuide-Num-Candidates", "many", "X-QGuide-Num-Candidates: Input should be a valid"),
        ("X-QGuide-Colour", "red", "X-QGuide-Colour: Extra inputs are not permitted; options are"),
        ("X-QGuide-Fallback", "never", "X-QGuide-Fallback: Input should be"),
    ],
)
def test_a_header_that_is_no_option_is_explained(
    guided: TestClient, header: str, value: str, said: str
) -> None:
    response = guided.post(
        "/v1/chat/completions", json={"messages": [USER]}, headers={header: value}
    )
    assert response.status_code == 400
    assert said in response.json()["error"]["message"]


@pytest.mark.parametrize("num_candidates", [1, 3])
def test_identical_candidates_skip_the_scorer(
    guided: TestClient, upstream: FakeUpstream, num_candidates: int
) -> None:
    upstream.replies = ["Action: look"]
    answer = ask(guided, qguide={"num_candidates": num_candidates})
    guidance = answer["qguide"]
    assert guidance["q_values"] is None
    assert guidance["reason"] == ("only_candidate" if num_candidates == 1 else "unanimous")
    assert guidance["guided"] is True
    assert guidance["usage"]["score"] == {"scored_tokens": 0, "cached_tokens": 0}
    assert answer["choices"][0]["message"]["content"] == "Action: look"


def dead_scorer(settings: Settings) -> Models:
    models = build_models(settings)
    models.runtime.thread.close()
    return models


def test_without_a_scorer_the_first_candidate_comes_flagged_where_that_was_asked_for(
    serve: Serve, address: tuple[FakeUpstream, str], upstream: FakeUpstream
) -> None:
    client = serve(settings_of(address[1]), dead_scorer)
    assert refusal(client, 503)["code"] == "scorer_unavailable"
    answer = ask(client, qguide={"fallback": "first"})
    assert answer["choices"][0]["message"]["content"] == DEFAULT_REPLIES[0]
    guidance = answer["qguide"]
    assert (guidance["guided"], guidance["reason"]) == (False, "fallback")
    assert "dead" in guidance["unguided_reason"] or "closed" in guidance["unguided_reason"]
    assert guidance["q_values"] is None
    assert 'qguide_unguided_total{q_model="demo@0"} 1.0' in client.get("/metrics").text
    acted = client.post("/v1/act", json={"messages": [USER], "fallback": "first"}).json()
    assert (acted["guided"], acted["chosen"], acted["reason"]) == (False, 0, "fallback")
    assert {candidate["q_value"] for candidate in acted["candidates"]} == {None}


def test_the_operator_may_ask_for_the_fallback_and_a_request_may_refuse_it(
    serve: Serve, address: tuple[FakeUpstream, str], upstream: FakeUpstream
) -> None:
    client = serve(settings_of(address[1], fallback="first"), dead_scorer)
    assert ask(client)["qguide"]["guided"] is False
    refusal(client, 503, qguide={"fallback": "error"})


def test_a_stream_brings_the_winner_in_valid_chunks(guided: TestClient) -> None:
    chunks = events_of(guided, stream_options={"include_usage": True})
    *pieces, last, usage = chunks
    assert {chunk["object"] for chunk in chunks} == {"chat.completion.chunk"}
    assert len({(chunk["id"], chunk["created"], chunk["model"]) for chunk in chunks}) == 1
    assert pieces[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    text = "".join(piece["choices"][0]["delta"]["content"] for piece in pieces)
    assert text == DEFAULT_REPLIES[2]
    assert len(pieces) > 3
    assert (last["choices"][0]["delta"], last["choices"][0]["finish_reason"]) == ({}, "stop")
    assert last["qguide"]["q_values"] == [0.5, 0.25, 0.75, 0.5, 0.25]
    assert usage["choices"] == []
    assert usage["usage"]["completion_tokens"] > 0
    assert all(chunk["usage"] is None for chunk in chunks[:-1])


def test_a_stream_has_no_usage_unless_asked(guided: TestClient) -> None:
    assert not any("usage" in chunk for chunk in events_of(guided))


def test_a_stream_brings_tool_calls_piece_by_piece(guided: TestClient) -> None:
    chunks = events_of(guided, tools=[TOOL])
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks]
    calls = [delta["tool_calls"][0] for delta in deltas if "tool_calls" in delta]
    assert calls[0]["function"] == {"name": "go", "arguments": ""}
    assert (calls[0]["index"], calls[0]["type"]) == (0, "function")
    assert "".join(call["function"]["arguments"] for call in calls) == '{"to": "desk"}'
    assert chunks[-1]["choices"][0]["finish_reason"] == "tool_calls"


def test_a_stream_of_n_choices_brings_them_all(guided: TestClient) -> None:
    chunks = events_of(guided, n=2, logprobs=True)
    text = {0: "", 1: ""}
    for chunk in chunks:
        [choice] = chunk["choices"]
        text[choice["index"]] += choice["delta"].get("content") or ""
    assert text == {0: DEFAULT_REPLIES[2], 1: DEFAULT_REPLIES[0]}
    assert sum("qguide" in chunk for chunk in chunks) == 1
    assert sum(bool(chunk["choices"][0]["logprobs"]) for chunk in chunks) == 2


def slow(settings: Settings) -> Settings:
    return settings.model_copy(update={"heartbeat_s": 0.05, "timeout_s": 2})


def test_a_stream_shows_life_while_it_waits_and_ends_with_the_error(
    serve: Serve, address: tuple[FakeUpstream, str], upstream: FakeUpstream
) -> None:
    upstream.fault = "hang"
    client = serve(slow(settings_of(address[1])))
    response = client.post("/v1/chat/completions", json={"messages": [USER], "stream": True})
    assert response.status_code == 200
    *beats, error, rest = response.text.split("\n\n")
    assert rest == ""
    assert len(beats) >= 3
    assert set(beats) == {": still working"}
    detail = json.loads(error.removeprefix("data: "))["error"]
    assert detail["type"] == "server_error"
    assert "upstream demo was silent for 1.8 s" in detail["message"]


def test_a_stream_that_fails_at_once_has_a_status(
    guided: TestClient, upstream: FakeUpstream
) -> None:
    upstream.fault = "500"
    assert refusal(guided, 502, stream=True)["code"] == "upstream_failed"
    upstream.fault = ""
    assert refusal(guided, 404, stream=True, qguide={"q_model": "none"})["param"] is None


@pytest.mark.parametrize(
    ("fault", "status", "code"),
    [
        ("429", 503, "upstream_unavailable"),
        ("503", 502, "upstream_failed"),
        ("garbage", 502, "upstream_failed"),
        ("401", 502, "upstream_failed"),
    ],
)
def test_an_upstreams_failure_is_said_in_openais_shape(
    guided: TestClient, upstream: FakeUpstream, fault: Any, status: int, code: str
) -> None:
    upstream.fault = fault
    error = refusal(guided, status)
    assert (error["code"], error["type"]) == (code, "server_error")
    assert "secret" not in error["message"]


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
    patient = Upstream.model_validate(served | {"connect_timeout_s": 0.1, "retries": 2})
    client = serve(settings_of(address[1], upstreams={"demo": patient}))
    body = {"messages": [USER], "qguide": {"num_candidates": 2}}
    answer = client.post("/v1/chat/completions", json=body)
    assert (answer.status_code, answer.headers["Retry-After"]) == (503, "1")
    assert "raise its max_connections" in answer.json()["error"]["message"]
    assert len(upstream.asked) == 1


@pytest.mark.parametrize(
    ("body", "status", "code", "param", "said"),
    [
        ({"model": "gpt-9"}, 404, "model_not_found", None, "served are demo"),
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
            "n is 3 and qguide.num_candidates 2",
        ),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]},
            400,
            "malformed_history",
            None,
            "a part of type 'image_url'; the Q models read text alone",
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


def test_any_served_policy_can_be_named(
    serve: Serve, address: tuple[FakeUpstream, str], upstream: FakeUpstream
) -> None:
    client = serve(settings_of(address[1], policy=SCRIPTED))
    assert ask(client)["model"] == SCRIPTED
    assert ask(client, model="default")["model"] == SCRIPTED
    assert ask(client, model="demo")["model"] == "demo"
    assert ask(client, model="fake-1")["model"] == "demo"
    acted = client.post("/v1/act", json={"messages": [USER], "policy": "demo"}).json()
    assert acted["policy"] == "demo"
    assert acted["usage"]["prompt_tokens"] > 0


def test_parts_of_text_are_one_text_to_who_reads_them_here(client: TestClient) -> None:
    parts = [{"type": "text", "text": "find"}, {"type": "text", "text": "the mug"}]
    apart, one = (ask(client, messages=[{"role": "user", "content": c}]) for c in (parts, "a b c"))
    assert apart["usage"] == one["usage"]


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
    assert f"has no {parameter!r}; leave it out or name a policy" in error["message"]


def test_a_policy_in_this_process_takes_what_changes_nothing(tiny_client: TestClient) -> None:
    answer = ask(
        tiny_client,
        model="tiny-policy",
        max_completion_tokens=4,
        seed=-3,
        top_p=1,
        tools=[],
        user="me",
        store=False,
        response_format={"type": "text"},
        qguide={"num_candidates": 3, "temperature": 1.5},
    )
    assert answer["choices"][0]["finish_reason"] in ("stop", "length")
    assert answer["qguide"]["q_values"] is not None
    assert answer["usage"]["completion_tokens"] <= 12


def test_models_are_listed_as_openai_lists_them(guided: TestClient) -> None:
    cards = guided.get("/v1/models").json()
    assert cards["object"] == "list"
    for card in cards["data"]:
        assert card["object"] == "model"
        assert isinstance(card["created"], int)
    [policy, *_] = cards["data"]
    assert (policy["id"], policy["owned_by"], policy["source"]) == ("demo", "demo", "upstream")
    assert policy["default"] is True
    assert {card["owned_by"] for card in cards["data"][1:]} == {"qguide"}


def test_chunks_of_a_choice_with_text_and_two_calls() -> None:
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    message = {"role": "assistant", "content": "I go.", "tool_calls": [call, call | {"id": "d"}]}
    completion = {
        "id": "x",
        "created": 1,
        "model": "m",
        "choices": [{"index": 0, "message": message, "finish_reason": "tool_calls"}],
    }
    deltas = [c["choices"][0]["delta"] for c in chunks_of(completion, include_usage=False)]
    assert "".join(delta.get("content") or "" for delta in deltas) == "I go."
    indices = [d["tool_calls"][0]["index"] for d in deltas if "tool_calls" in d]
    assert indices == [0, 0, 1, 1]

"""Gemini's clients in front of an upstream that is asked in Gemini's own dialect."""

from typing import Any

import pytest
from fastapi.testclient import TestClient

from qguide.server.settings.remote_models import Upstream
from tests.support.dialect_upstream import DialectUpstream
from tests.support.gemini_upstream import SIGNATURE
from tests.unit.server.conftest import FAKES, Serve

ASKED: dict[str, Any] = {"contents": [{"role": "user", "parts": [{"text": "find the mug"}]}]}
TOOLS = [{"functionDeclarations": [{"name": "look", "parametersJsonSchema": {"type": "object", "properties": {}}}]}]
THREE = {"qguide": {"num_candidates": 3}}
OLD = "demo"


@pytest.fixture
def client(serve: Serve, address: tuple[DialectUpstream, str], upstream: DialectUpstream) -> TestClient:
    """Two models of Gemini's, the second of which wants signatures."""
    models = {OLD: "gemini-2.5-flash", "new": "gemini-3-pro"}
    table = {"url": address[1], "dialect": "gemini", "retries": 0}
    served = {name: Upstream.model_validate(table | {"model": model}) for name, model in models.items()}
    return serve(FAKES.model_copy(update={"upstreams": served, "policy": OLD}))


def generated(client: TestClient, body: Any, model: str = OLD, method: str = "generateContent") -> Any:
    answer = client.post(f"/v1beta/models/{model}:{method}", json=body)
    assert answer.status_code == 200, answer.text
    return answer.json()


def test_a_request_goes_on_as_it_came_and_the_best_answer_comes_back(
    client: TestClient, upstream: DialectUpstream
) -> None:
    own: Any = {
        "safetySettings": [{"category": "HARM_CATEGORY_HARASSMENT", "threshold": "BLOCK_NONE"}],
        "generationConfig": {"thinkingConfig": {"includeThoughts": True, "thinkingBudget": 512}, "topK": 3},
    }
    answer = generated(client, ASKED | own | THREE)
    [asked] = upstream.asked
    assert asked["contents"] == ASKED["contents"]
    assert asked["safetySettings"] == own["safetySettings"]
    assert asked["generationConfig"] == own["generationConfig"] | {"candidateCount": 3}
    thought, text = answer["candidates"][0]["content"]["parts"]
    assert (thought, answer["qguide"]["distinct_candidates"]) == ({"text": "Let me see.", "thought": True}, 3)
    assert text["text"].endswith("go to desk 1"), "the scripted Q model likes a desk"
    assert answer["qguide"]["warnings"] == []


@pytest.mark.parametrize("method", ["generateContent", "streamGenerateContent"])
def test_a_signed_call_comes_back_to_a_model_that_wants_signatures(
    client: TestClient, upstream: DialectUpstream, method: str
) -> None:
    said = generated(client, ASKED | {"tools": TOOLS} | THREE, "new", method)
    pieces = said if isinstance(said, list) else [said]
    parts = [part for piece in pieces for part in piece["candidates"][0]["content"]["parts"]]
    [call] = [part for part in parts if "functionCall" in part]
    assert call["thoughtSignature"] == SIGNATURE
    result = {"functionResponse": {**call["functionCall"], "response": {"output": "a mug"}}}
    del result["functionResponse"]["args"]
    turns = [*ASKED["contents"], {"role": "model", "parts": parts}, {"role": "user", "parts": [result]}]
    answer = generated(client, {"contents": turns, "tools": TOOLS}, "new")
    assert answer["candidates"][0]["content"]["parts"][0]["text"]
    assert upstream.asked[-1]["contents"] == turns


def test_a_chats_caller_sends_the_signature_back_and_one_without_it_is_let_pass(
    client: TestClient, upstream: DialectUpstream
) -> None:
    tools = [{"type": "function", "function": {"name": "look"}}]
    asked: dict[str, Any] = {"model": "new", "messages": [{"role": "user", "content": "find the mug"}], "tools": tools}
    answer = client.post("/v1/chat/completions", json=asked).json()
    message = answer["choices"][0]["message"]
    [call] = message["tool_calls"]
    assert call["extra_content"] == {"google": {"thought_signature": SIGNATURE}}
    result = {"role": "tool", "tool_call_id": call["id"], "content": "a mug"}
    bare = {**message, "tool_calls": [{name: call[name] for name in ("id", "type", "function")}]}
    for turn in (message, bare):
        told = client.post("/v1/chat/completions", json=asked | {"messages": [*asked["messages"], turn, result]})
        assert told.status_code == 200, told.text
    first, second = (body["contents"][1]["parts"][0]["thoughtSignature"] for body in upstream.asked[-2:])
    assert (first, second) == (SIGNATURE, "skip_thought_signature_validator")


def test_what_makes_no_text_is_left_out_with_a_warning(client: TestClient, upstream: DialectUpstream) -> None:
    config = {"responseModalities": ["IMAGE"], "temperature": 0.5}
    answer = generated(client, ASKED | {"generationConfig": config, "labels": {"a": "b"}})
    assert upstream.asked[-1]["generationConfig"] == {"temperature": 0.5, "candidateCount": 5}
    assert "labels" not in upstream.asked[-1]
    warnings = " ".join(answer["qguide"]["warnings"])
    assert ("responseModalities" in warnings, "labels" in warnings) == (True, True)


@pytest.mark.parametrize(
    "part",
    [
        {"text": "read", "fileData": {"fileUri": "https://generativelanguage.googleapis.com/v1beta/files/a"}},
        {"text": "read", "file_data": {"file_uri": "http://169.254.169.254/"}},
    ],
)
def test_no_address_reaches_the_upstream_beside_a_text(
    client: TestClient, upstream: DialectUpstream, part: dict[str, Any]
) -> None:
    body = {"contents": [{"role": "user", "parts": [part]}]}
    answer = client.post(f"/v1beta/models/{OLD}:generateContent", json=body)
    assert (answer.status_code, upstream.asked) == (400, [])
    assert "which an upstream would fetch" in answer.json()["error"]["message"]


def test_an_address_in_arguments_and_results_is_text(client: TestClient, upstream: DialectUpstream) -> None:
    call = {"functionCall": {"id": "1", "name": "get", "args": {"url": "http://a.test/"}}}
    result = {"functionResponse": {"id": "1", "name": "get", "response": {"url": "http://a.test/b"}}}
    turns = [*ASKED["contents"], {"role": "model", "parts": [call]}, {"role": "user", "parts": [result]}]
    generated(client, {"contents": turns})
    assert upstream.asked[-1]["contents"] == turns


def test_the_upstream_counts_the_tokens(client: TestClient, upstream: DialectUpstream) -> None:
    told = generated(client, ASKED, method="countTokens")
    assert (told["totalTokens"] > 0, told["qguide"]["counted_by"], told["qguide"]["exact"]) == (True, "upstream", True)
    assert upstream.asked == [{"generateContentRequest": {"model": "models/gemini-2.5-flash", **ASKED}}]


def test_a_model_of_one_candidate_is_asked_for_each_apart(client: TestClient, upstream: DialectUpstream) -> None:
    upstream.fault = "refuse_n"
    answer = generated(client, ASKED | THREE)
    assert answer["qguide"]["distinct_candidates"] >= 2

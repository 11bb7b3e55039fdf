"""Gemini's routes through the server: guidance, calls, streams, refusals in Google's shape."""

import base64
import json
from typing import Any

import pytest
from fastapi.testclient import TestClient

from qguide.qnet.dialects.gemini_answers import signature_of
from qguide.server.chat.fake_openai import DEFAULT_REPLIES, FakeUpstream
from qguide.server.http.keys import create_key
from tests.unit.server.conftest import Serve, settings_of

FIND = {"role": "user", "parts": [{"text": "find the mug"}]}
LOOK = {
    "name": "look",
    "description": "Look at a place.",
    "parameters": {
        "type": "OBJECT",
        "properties": {"place": {"type": "STRING", "nullable": True, "enum": ["desk"]}},
        "required": ["place"],
        "propertyOrdering": ["place"],
    },
}
TOOLS = [{"functionDeclarations": [LOOK]}]


def post(client: TestClient, method: str = "generateContent", model: str = "demo", **body: Any) -> Any:
    return client.post(f"/v1beta/models/{model}:{method}", json={"contents": [FIND]} | body)


def ask(client: TestClient, **body: Any) -> dict[str, Any]:
    response = post(client, **body)
    assert response.status_code == 200, response.text
    answer: dict[str, Any] = response.json()
    return answer


def parts_of(answer: dict[str, Any]) -> list[dict[str, Any]]:
    [candidate] = answer["candidates"]
    parts: list[dict[str, Any]] = candidate["content"]["parts"]
    return parts


def test_the_best_candidate_is_the_content(guided: TestClient, upstream: FakeUpstream) -> None:
    answer = ask(
        guided,
        systemInstruction={"role": "system", "parts": [{"text": "Be brief."}]},
        generationConfig={"maxOutputTokens": 9.0, "topK": 40, "stopSequences": ["END"]},
        qguide={"num_candidates": 3},
    )
    assert parts_of(answer) == [{"text": DEFAULT_REPLIES[2]}]
    assert answer["candidates"][0]["finishReason"] == "STOP"
    assert answer["modelVersion"] == "demo"
    assert answer["qguide"]["q_values"] == [0.5, 0.25, 0.75]
    usage = answer["usageMetadata"]
    assert usage["totalTokenCount"] == usage["promptTokenCount"] + usage["candidatesTokenCount"]
    [asked] = upstream.asked
    assert asked == {
        "model": "fake-1",
        "messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "find the mug"}],
        "max_tokens": 9,
        "top_k": 40,
        "stop": ["END"],
        "n": 3,
    }


@pytest.mark.parametrize("version", ["v1", "v1beta"])
def test_both_versions_of_the_path_and_both_spellings_of_fields(guided: TestClient, version: str) -> None:
    body = {"contents": [FIND], "generation_config": {"max_output_tokens": 9}}
    response = guided.post(f"/{version}/models/demo:generateContent", json=body)
    assert parts_of(response.json()) == [{"text": DEFAULT_REPLIES[2]}]


def test_a_call_goes_out_and_its_result_comes_back(guided: TestClient, upstream: FakeUpstream) -> None:
    upstream.calls = [("look", {"place": "desk"})]
    config = {"functionCallingConfig": {"mode": "ANY", "allowedFunctionNames": ["look"]}}
    answer = ask(guided, tools=TOOLS, toolConfig=config, qguide={"num_candidates": 1})
    [part] = parts_of(answer)
    call = part["functionCall"]
    assert (call["name"], call["args"]) == ("look", {"place": "desk"})
    [asked] = upstream.asked
    [tool] = asked["tools"]
    assert tool["function"]["parameters"] == {
        "type": "object",
        "properties": {"place": {"type": ["string", "null"], "enum": ["desk"]}},
        "required": ["place"],
    }
    assert asked["tool_choice"] == {"type": "function", "function": {"name": "look"}}

    upstream.calls = []
    result = {"functionResponse": {"name": "look", "response": {"result": "a mug"}}}
    ask(guided, contents=[FIND, answer["candidates"][0]["content"], {"role": "user", "parts": [result]}], tools=TOOLS)
    *_, called, told = upstream.asked[-1]["messages"]
    assert called["tool_calls"][0]["id"] == told["tool_call_id"] == call["id"]
    assert told["content"] == "a mug"


def test_a_result_that_the_client_repeats_counts_once(guided: TestClient, upstream: FakeUpstream) -> None:
    call = {"functionCall": {"id": "c1", "name": "look", "args": {}}}
    result = {"functionResponse": {"id": "c1", "name": "look", "response": {"output": "a mug"}}}
    ask(guided, contents=[FIND, {"role": "model", "parts": [call]}, {"role": "tool", "parts": [result, result]}])
    assert [turn["role"] for turn in upstream.asked[-1]["messages"]] == ["user", "assistant", "tool"]


def test_results_without_ids_belong_to_the_calls_of_their_names(guided: TestClient, upstream: FakeUpstream) -> None:
    calls: list[dict[str, Any]] = [{"functionCall": {"name": name, "args": {}}} for name in ("look", "go", "look")]
    results = [
        {"functionResponse": {"name": name, "response": response}}
        for name, response in [("go", {"error": "no way"}), ("look", {"seen": 1}), ("look", {"output": "two"})]
    ]
    ask(guided, contents=[FIND, {"role": "model", "parts": calls}, {"parts": results}])
    _, called, *told = upstream.asked[-1]["messages"]
    looked, gone, looked_again = (call["id"] for call in called["tool_calls"])
    assert [(turn["tool_call_id"], turn["content"]) for turn in told] == [
        (gone, "Error: no way"),
        (looked, '{"seen": 1}'),
        (looked_again, "two"),
    ]


def test_thoughts_go_back_only_to_the_upstream_that_gave_them(guided: TestClient, upstream: FakeUpstream) -> None:
    own = {"text": "hm", "thought": True, "thoughtSignature": signature_of("reasoning_content")}
    foreign = {"text": "ah", "thought": True, "thoughtSignature": "Zm9yZWlnbg=="}
    model = {"role": "model", "parts": [foreign, own, {"text": "yes"}]}
    ask(guided, contents=[FIND, model, FIND])
    assert upstream.asked[-1]["messages"][1] == {"role": "assistant", "content": "yes", "reasoning_content": "hm"}


def test_images_reach_the_upstream_and_the_q_model_reads_the_text(guided: TestClient, upstream: FakeUpstream) -> None:
    data = base64.b64encode(b"hi").decode()
    image = {"inlineData": {"mimeType": "image/png", "data": data}}
    answer = ask(guided, contents=[{"role": "user", "parts": [image, {"text": "what is it?"}]}])
    assert answer["qguide"]["guided"] is True
    [shown, _] = upstream.asked[-1]["messages"][0]["content"]
    assert shown == {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{data}"}}


def test_a_turn_that_comes_back_as_the_pieces_of_its_stream_is_one_turn(
    guided: TestClient, upstream: FakeUpstream
) -> None:
    thought = {"thought": True, "thoughtSignature": signature_of("reasoning_content")}
    pieces: list[dict[str, Any]] = [
        {"text": "hm ", **thought},
        {"text": "ah", **thought},
        {"text": "I "},
        {"text": "look."},
        {"functionCall": {"name": "look", "args": {}}},
        {"functionCall": {"name": "look", "args": {}}},
    ]
    turns = [{"role": "model", "parts": [piece]} for piece in pieces]
    result = {"functionResponse": {"name": "look", "response": {"output": "a mug"}}}
    results = {"role": "user", "parts": [result, result]}
    ask(guided, contents=[FIND, *turns, {"role": "model", "parts": []}, results])
    _, said, *told = upstream.asked[-1]["messages"]
    assert (said["content"], said["reasoning_content"]) == ("I look.", "hm ah")
    ids = [call["id"] for call in said["tool_calls"]]
    assert len({*ids}) == 2
    assert ids == [turn["tool_call_id"] for turn in told]


def test_files_of_a_result_come_after_it(guided: TestClient, upstream: FakeUpstream) -> None:
    data = base64.b64encode(b"hi>>>???").decode()
    sent = base64.urlsafe_b64encode(b"hi>>>???").decode().rstrip("=")
    assert {"-", "_"} < {*sent}, "as Google's SDK for Python sends bytes"
    files = [{"inlineData": {"mimeType": kind, "data": sent}} for kind in ("image/png", "text/csv")]
    call = {"role": "model", "parts": [{"functionCall": {"name": "look"}}]}
    result = {"name": "look", "response": {"output": "see"}, "parts": files}
    ask(guided, contents=[FIND, call, {"parts": [{"functionResponse": result}]}])
    *_, told, seen = upstream.asked[-1]["messages"]
    assert (told["role"], told["content"]) == ("tool", "see")
    image = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{data}"}}
    assert seen == {"role": "user", "content": [image, {"type": "text", "text": "hi>>>???"}]}


def test_an_address_that_the_operator_has_not_allowed_is_not_fetched(guided: TestClient) -> None:
    part = {"fileData": {"mimeType": "image/png", "fileUri": "http://169.254.169.254/x"}}
    response = post(guided, contents=[{"role": "user", "parts": [part]}])
    assert response.status_code == 400
    assert response.json()["error"]["status"] == "INVALID_ARGUMENT"


def test_an_answer_by_a_schema(guided: TestClient, upstream: FakeUpstream) -> None:
    config = {
        "responseMimeType": "application/json",
        "responseSchema": {"type": "OBJECT", "properties": {"n": {"type": "INTEGER"}}},
    }
    ask(guided, generationConfig=config)
    form = upstream.asked[-1]["response_format"]
    assert form["json_schema"]["schema"] == {"type": "object", "properties": {"n": {"type": "integer"}}}


def test_a_stream_of_events_adds_up_to_the_answer(guided: TestClient) -> None:
    response = guided.post("/v1beta/models/demo:streamGenerateContent?alt=sse", json={"contents": [FIND]})
    assert response.headers["content-type"].startswith("text/event-stream")
    events = [line for line in response.text.split("\n\n") if line]
    read = [json.loads(event.removeprefix("data: ")) for event in events]
    assert "".join(part["text"] for one in read for part in parts_of(one)) == DEFAULT_REPLIES[2]
    assert [one["candidates"][0].get("finishReason") for one in read[-2:]] == [None, "STOP"]
    assert all(map(parts_of, read)), "Google's chats forget a turn that has a piece without parts"
    assert read[-1]["qguide"]["guided"] is True
    assert read[-1]["usageMetadata"]["totalTokenCount"] > 0


def test_an_empty_answer_has_a_part(guided: TestClient, upstream: FakeUpstream) -> None:
    upstream.replies = [""]
    assert parts_of(ask(guided)) == [{"text": ""}]
    [only] = post(guided, method="streamGenerateContent").json()
    assert parts_of(only) == [{"text": ""}]
    assert only["candidates"][0]["finishReason"] == "STOP"


def test_a_stream_without_events_is_a_list(guided: TestClient) -> None:
    read = post(guided, method="streamGenerateContent").json()
    assert "".join(part["text"] for one in read for part in parts_of(one)) == DEFAULT_REPLIES[2]


def test_tokens_are_counted(tiny_client: TestClient) -> None:
    [name] = [one["name"] for one in tiny_client.get("/v1beta/models").json()["models"]]
    model = name.removeprefix("models/")
    short = post(tiny_client, method="countTokens", model=model).json()["totalTokens"]
    request = {"model": name, "contents": [FIND, FIND]}
    counted = tiny_client.post(f"/v1beta/{name}:countTokens", json={"generateContentRequest": request}).json()
    assert 0 < short < counted["totalTokens"]


def test_the_policies_are_listed_and_shown(guided: TestClient) -> None:
    listed = guided.get("/v1beta/models").json()["models"]
    assert [one["name"] for one in listed] == ["models/demo"]
    assert guided.get("/v1beta/models/demo").json() == listed[0]


def test_the_key_of_geminis_clients(serve: Serve, address: Any, tmp_path: Any) -> None:
    keys = tmp_path / "keys.json"
    key = create_key(keys, "ada")
    client = serve(settings_of(address[1]).model_copy(update={"keys_file": keys}))
    refused = post(client)
    assert (refused.status_code, refused.json()["error"]["status"]) == (401, "UNAUTHENTICATED")
    client.headers["x-goog-api-key"] = key
    assert post(client).status_code == 200


@pytest.mark.parametrize(
    ("body", "status", "kind", "reason", "said"),
    [
        ({"model": "gpt-9"}, 404, "NOT_FOUND", "unknown_model", "this server has demo"),
        ({"contents": 3}, 400, "INVALID_ARGUMENT", "malformed_body", "valid list"),
        ({"contents": []}, 400, "INVALID_ARGUMENT", "malformed_history", "is empty"),
        (
            {"tools": [{"googleSearch": {}}]},
            400,
            "INVALID_ARGUMENT",
            "unsupported_parameter",
            "no tools that Google runs",
        ),
        (
            {"tools": TOOLS, "toolConfig": {"functionCallingConfig": {"allowedFunctionNames": ["fly"]}}},
            400,
            "INVALID_ARGUMENT",
            "invalid_request",
            "allows 'fly', which no tool declares",
        ),
        (
            {"contents": [{"parts": [{"inlineData": {"mimeType": "text/csv", "data": "?"}}]}]},
            400,
            "INVALID_ARGUMENT",
            "malformed_history",
            "is no text in UTF-8 and base64",
        ),
        (
            {"cachedContent": "cachedContents/1"},
            400,
            "INVALID_ARGUMENT",
            "unsupported_parameter",
            "send it in contents",
        ),
        (
            {"generationConfig": {"candidateCount": 2}},
            400,
            "INVALID_ARGUMENT",
            "invalid_request",
            "candidateCount is 2",
        ),
        (
            {"contents": [{"parts": [{"functionResponse": {"name": "go", "response": {}}}]}]},
            400,
            "INVALID_ARGUMENT",
            "malformed_history",
            "answers no open call of 'go'",
        ),
        (
            {"contents": [{"parts": [{"executableCode": {"code": "1"}}]}]},
            400,
            "INVALID_ARGUMENT",
            "malformed_history",
            "contents[0].parts[0] cannot be translated",
        ),
    ],
)
def test_a_wrong_request_is_explained_in_googles_shape(
    guided: TestClient, body: Any, status: int, kind: str, reason: str, said: str
) -> None:
    response = post(guided, **body)
    assert response.status_code == status, response.text
    error = response.json()["error"]
    assert (error["code"], error["status"]) == (status, kind)
    assert error["details"][0]["reason"] == reason
    assert said in error["message"]


def test_what_has_no_effect_is_told(guided: TestClient) -> None:
    answer = ask(
        guided, safetySettings=[], generationConfig={"thinkingConfig": {"thinkingBudget": 9}, "speechConfig": {}}
    )
    [warning] = answer["qguide"]["warnings"]
    for name in ("safetySettings", "thinkingConfig.thinkingBudget", "speechConfig"):
        assert name in warning


def test_googles_sdk_lists_models_on_the_path_of_openais(guided: TestClient) -> None:
    headers = {"x-goog-api-key": "any"}
    listed = guided.get("/v1/models", headers=headers).json()
    assert listed == guided.get("/v1beta/models").json()
    [name] = [one["name"] for one in listed["models"]]
    assert guided.get(f"/v1/{name}", headers=headers).json()["name"] == name
    assert guided.get("/v1/models").json()["object"] == "list"

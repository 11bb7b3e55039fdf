"""Chat completions as streams."""

import json

from fastapi.testclient import TestClient

from qguide.qnet.dialects.chat_chunks import chunks_of
from qguide.server.chat.fake_openai import DEFAULT_REPLIES, FakeUpstream
from qguide.server.settings.remote_models import Upstream
from tests.support.chats import TOOL, USER, events_of, refusal
from tests.unit.server.conftest import Serve, settings_of


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


def test_a_stream_shows_life_while_it_waits_and_ends_with_the_error(
    serve: Serve, address: tuple[FakeUpstream, str], upstream: FakeUpstream
) -> None:
    upstream.fault = "hang"
    silent = Upstream.model_validate({"url": address[1], "model": "m", "timeout_s": 1.0})
    client = serve(settings_of(address[1], upstreams={"demo": silent}, heartbeat_s=0.05))
    response = client.post("/v1/chat/completions", json={"messages": [USER], "stream": True})
    assert response.status_code == 200
    *beats, error, rest = response.text.split("\n\n")
    assert rest == ""
    assert len(beats) >= 3
    assert set(beats) == {": still working"}
    detail = json.loads(error.removeprefix("data: "))["error"]
    assert detail["type"] == "server_error"
    assert "upstream demo was silent for 1 s" in detail["message"]


def test_a_stream_that_fails_at_once_has_a_status(guided: TestClient, upstream: FakeUpstream) -> None:
    upstream.fault = "500"
    assert refusal(guided, 502, stream=True)["code"] == "upstream_failed"
    upstream.fault = ""
    assert refusal(guided, 404, stream=True, qguide={"q_model": "none"})["param"] is None


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

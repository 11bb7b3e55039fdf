"""Ollama's chats from and to chat completions."""

from typing import Any

import pytest

from qguide.qnet.dialects.ollama import answer_of, chat_of, lines_of
from qguide.qnet.errors import MalformedHistoryError

ASKED = {"role": "user", "content": "find the mug"}


def call(name: str, **arguments: Any) -> dict[str, Any]:
    return {"function": {"name": name, "arguments": arguments}}


def turns(*messages: dict[str, Any]) -> list[dict[str, Any]]:
    chat, _ = chat_of({"model": "demo", "messages": [ASKED, *messages]})
    said: list[dict[str, Any]] = chat["messages"]
    return said


def test_a_result_answers_the_first_open_call_of_its_name() -> None:
    called = {"role": "assistant", "tool_calls": [call("look"), call("take"), call("look")]}
    results = [
        {"role": "tool", "tool_name": "take", "content": "1"},
        {"role": "tool", "tool_name": "look", "content": "2"},
        {"role": "tool", "content": "3"},
    ]
    said = turns(called, *results)
    ids = [one["id"] for one in said[1]["tool_calls"]]
    assert len(set(ids)) == 3
    assert [turn["tool_call_id"] for turn in said[2:]] == [ids[1], ids[0], ids[2]]


def test_ids_that_the_caller_gives_are_kept() -> None:
    called = {"role": "assistant", "tool_calls": [call("look") | {"id": "a"}]}
    said = turns(called, {"role": "tool", "tool_call_id": "a", "content": "nothing"})
    assert said[2]["tool_call_id"] == said[1]["tool_calls"][0]["id"] == "a"


def test_a_result_without_an_open_call_is_refused() -> None:
    called = {"role": "assistant", "tool_calls": [call("look")]}
    result = {"role": "tool", "tool_name": "look", "content": "nothing"}
    with pytest.raises(MalformedHistoryError, match=r"^messages\[3\] .*tool_name"):
        turns(called, result, result)


def test_bytes_that_are_no_image_are_refused() -> None:
    with pytest.raises(MalformedHistoryError, match=r"^messages\[1\]\.images\[0\] .*base64"):
        turns({"role": "user", "images": ["AAAA"]})


def test_options_of_the_engine_are_named_and_left_out() -> None:
    options = {"num_ctx": 4096, "num_predict": -1, "top_k": 40, "repeat_penalty": 1.1}
    body = {"model": "demo", "messages": [ASKED], "options": options}
    chat, dropped = chat_of(body | {"format": "json", "think": "low"})
    assert dropped == {"options.num_ctx"}
    assert "max_tokens" not in chat
    assert (chat["top_k"], chat["repetition_penalty"]) == (40, 1.1)
    assert chat["response_format"] == {"type": "json_object"}
    assert chat["reasoning_effort"] == "low"


@pytest.mark.parametrize("thinks", [True, False])
def test_thoughts_are_shown_unless_the_caller_declines(thinks: bool) -> None:
    function = {"name": "look", "arguments": "not JSON"}
    message = {
        "content": None,
        "reasoning_content": "hm",
        "tool_calls": [{"id": "a", "type": "function", "function": function}],
    }
    completion = {
        "model": "demo",
        "created": 0,
        "choices": [{"message": message, "finish_reason": "length"}],
        "usage": {"prompt_tokens": 3, "completion_tokens": 2},
        "qguide": {"warnings": [], "timings_ms": {"total": 2.0, "sample": 1.5}},
    }
    answer = answer_of(completion, thinks=thinks, warnings=["one"])
    assert answer["message"].get("thinking") == ("hm" if thinks else None)
    [call] = answer["message"]["tool_calls"]
    assert call == {"id": "a", "function": {"name": "look", "arguments": {"INVALID_JSON": "not JSON"}}}
    assert (answer["created_at"], answer["done_reason"]) == ("1970-01-01T00:00:00Z", "length")
    assert (answer["total_duration"], answer["eval_duration"]) == (2_000_000, 1_500_000)
    assert answer["qguide"]["warnings"][0] == "one"
    assert "not a JSON object" in answer["qguide"]["warnings"][1]


def test_lines_together_are_the_answer() -> None:
    message = {
        "role": "assistant",
        "content": "go to desk",
        "thinking": "a desk has mugs",
        "tool_calls": [call("look"), call("take")],
    }
    answer = {"model": "demo", "created_at": "now", "done": True, "message": message, "qguide": {}}
    lines = list(lines_of(answer))
    said = [line["message"] for line in lines]
    assert "".join(one.get("thinking", "") for one in said) == message["thinking"]
    assert "".join(one["content"] for one in said) == message["content"]
    assert [one for each in said for one in each.get("tool_calls", ())] == message["tool_calls"]
    assert [line["done"] for line in lines] == [False] * (len(lines) - 1) + [True]

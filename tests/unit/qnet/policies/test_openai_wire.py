"""What upstreams say, read."""

import json
from typing import Any

import pytest

from qnet.policies.openai_wire import candidates_of, is_object, wire_message
from qnet.types import spent_on


def answer(message: dict[str, Any], **more: Any) -> bytes:
    choice = {"index": 0, "message": {"role": "assistant"} | message, "finish_reason": "stop"}
    return json.dumps({"choices": [choice]} | more).encode()


def test_content_in_parts_is_its_text() -> None:
    parts = [
        {"type": "thinking", "thinking": [{"type": "text", "text": "hm"}]},
        {"type": "text", "text": "Action: "},
        {"type": "text", "text": "look"},
    ]
    [candidate] = candidates_of(answer({"content": parts}))
    assert candidate.message.content == "Action: look"


def test_calls_of_functions_and_custom_tools_are_read_and_written_alike() -> None:
    calls = [
        {"id": "a", "type": "function", "function": {"name": "go", "arguments": "{}"}},
        {"id": "b", "type": "custom", "custom": {"name": "shell", "input": "ls {"}},
    ]
    [candidate] = candidates_of(answer({"content": None, "tool_calls": calls}))
    assert wire_message(candidate.message)["tool_calls"] == calls
    assert candidate.message.text == "Action: go({})\nAction: shell(ls {)"


def test_what_else_is_said_stands_with_whom_it_is_said_of() -> None:
    said = {"message": {"role": "assistant", "content": "go"}, "finish_reason": "stop"}
    body = {
        "id": "a",
        "model": "m",
        "system_fingerprint": "fp",
        "service_tier": None,
        "choices": [said | {"stop_reason": 7}, said | {"index": 1, "token_ids": [3, 4]}],
        "usage": {
            "completion_tokens": 2,
            "completion_tokens_details": {"reasoning_tokens": 1, "audio_tokens": None},
        },
    }
    first, second = candidates_of(json.dumps(body).encode())
    assert (first.extra, second.extra) == ({"stop_reason": 7}, {"token_ids": [3, 4]})
    assert first.answer_extra == second.answer_extra == {"system_fingerprint": "fp"}
    assert spent_on([first, second, first]).completion_details == {"reasoning_tokens": 2}


@pytest.mark.parametrize(
    ("said", "expected"),
    [(b'{"choices": []}', True), (b"[]", False), (b"<html>", False), (b"[" * 99_999, False)],
)
def test_an_object_is_told_from_garbage(said: bytes, expected: bool) -> None:
    assert is_object(said) is expected
    assert candidates_of(said) == []

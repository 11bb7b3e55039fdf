"""What upstreams say, read."""

import json
from typing import Any

import pytest

from qnet.policies.openai_wire import candidates_of, is_object, wire_message


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


@pytest.mark.parametrize(
    ("said", "expected"),
    [(b'{"choices": []}', True), (b"[]", False), (b"<html>", False), (b"[" * 99_999, False)],
)
def test_an_object_is_told_from_garbage(said: bytes, expected: bool) -> None:
    assert is_object(said) is expected
    assert candidates_of(said) == []

"""OpenAI's Responses API, from chat turns and back."""

import json
from typing import Any

import pytest

from qguide.qnet.errors import InvalidRequestError
from qguide.qnet.policies.upstream_dialects import RESPONSES as DIALECT
from qguide.qnet.types import Candidate, Message, Sampling, ToolCall
from qguide.qnet.work import TokenUsage


def body(*history: Message, **sampling: Any) -> dict[str, Any]:
    given = {"temperature": None, "max_tokens": None} | sampling
    return DIALECT.request_body("m", history, n=1, sampling=Sampling(**given))


def drawn(*items: dict[str, Any], **more: Any) -> Candidate:
    answer = {"object": "response", "status": "completed", "output": list(items), **more}
    [candidate] = DIALECT.read_answer(json.dumps(answer).encode()).candidates
    return candidate


def message(*parts: dict[str, Any]) -> dict[str, Any]:
    return {"type": "message", "role": "assistant", "content": list(parts)}


def test_a_turn_with_calls_is_several_items() -> None:
    asked = body(
        Message("system", "be brief"),
        Message("assistant", "I go.", (ToolCall("a", "{}", "1"), ToolCall("b", "x", "2", "custom"))),
        Message("tool", "one", tool_call_id="1"),
        Message("tool", "two", tool_call_id="2"),
    )
    assert asked["input"] == [
        {"role": "system", "content": "be brief"},
        {"role": "assistant", "content": "I go."},
        {"type": "function_call", "call_id": "1", "name": "a", "arguments": "{}"},
        {"type": "custom_tool_call", "call_id": "2", "name": "b", "input": "x"},
        {"type": "function_call_output", "call_id": "1", "output": "one"},
        {"type": "custom_tool_call_output", "call_id": "2", "output": "two"},
    ]
    assert asked["store"] is False


def test_parameters_have_the_names_of_responses() -> None:
    given = {
        "tools": [
            {"type": "function", "function": {"name": "look", "parameters": {}}},
            {"type": "custom", "custom": {"name": "patch"}},
        ],
        "tool_choice": {"type": "function", "function": {"name": "look"}},
        "response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": {}}},
        "verbosity": "low",
        "reasoning_effort": "high",
        "logprobs": True,
        "top_logprobs": 3,
        "max_completion_tokens": 7,
    }
    asked = body(Message("user", "go"), parameters=given)
    assert {name: asked[name] for name in asked if name not in ("model", "input", "store")} == {
        "tools": [
            {"type": "function", "name": "look", "parameters": {}, "strict": False},
            {"type": "custom", "name": "patch"},
        ],
        "tool_choice": {"type": "function", "name": "look"},
        "text": {"format": {"type": "json_schema", "name": "a", "schema": {}}, "verbosity": "low"},
        "reasoning": {"effort": "high", "summary": "auto"},
        "include": ["message.output_text.logprobs"],
        "top_logprobs": 3,
        "max_output_tokens": 7,
    }


def test_parts_have_the_types_of_responses() -> None:
    parts = [
        {"type": "text", "text": "what"},
        {"type": "image_url", "image_url": {"url": "u", "detail": "low"}},
        {"type": "file", "file": {"filename": "f", "file_data": "d"}},
    ]
    asked = body(Message("user", "what", wire={"role": "user", "content": parts}))
    assert asked["input"][0]["content"] == [
        {"type": "input_text", "text": "what"},
        {"type": "input_image", "image_url": "u", "detail": "low"},
        {"type": "input_file", "filename": "f", "file_data": "d"},
    ]


def test_images_of_a_result_are_parts_of_its_output() -> None:
    parts: list[dict[str, Any]] = [
        {"type": "text", "text": "a photo"},
        {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}},
    ]
    called = Message("assistant", "", (ToolCall("look", "{}", "1"),))
    for content, output in (
        (parts[:1], "a photo"),
        (
            parts,
            [
                {"type": "input_text", "text": "a photo"},
                {"type": "input_image", "image_url": "data:image/png;base64,AA=="},
            ],
        ),
    ):
        wire = {"role": "tool", "tool_call_id": "1", "content": content}
        seen = Message("tool", "a photo", tool_call_id="1", wire=wire)
        assert body(called, seen)["input"][-1]["output"] == output


def test_allowed_tools_are_named_as_in_responses() -> None:
    tool = {"type": "function", "function": {"name": "go"}}
    choice = {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [tool]}}
    given = {"tools": [tool, {"function": {"name": "look"}}], "tool_choice": choice}
    asked = body(Message("user", "go"), parameters=given)
    named, loose = {"type": "function", "name": "go"}, {"strict": False}
    assert asked["tools"] == [named | loose, {"type": "function", "name": "look"} | loose]
    assert asked["tool_choice"] == {"type": "allowed_tools", "mode": "auto", "tools": [named]}


def test_a_part_without_a_counterpart_is_refused() -> None:
    wire = {"role": "user", "content": [{"type": "video"}]}
    with pytest.raises(InvalidRequestError, match="'video'"):
        body(Message("user", "", wire=wire))


def test_the_address_of_an_image_may_stand_alone() -> None:
    image = {"type": "image_url", "image_url": "data:image/png;base64,AA=="}
    wire = {"role": "user", "content": [image]}
    [turn] = body(Message("user", "", wire=wire))["input"]
    assert turn["content"] == [{"type": "input_image", "image_url": "data:image/png;base64,AA=="}]


def test_items_are_one_reply() -> None:
    thought = {"type": "reasoning", "content": [{"type": "reasoning_text", "text": "hm"}]}
    said = {"type": "output_text", "text": "I go.", "logprobs": [{"token": "I"}]}
    call = {"type": "function_call", "call_id": "1", "name": "go", "arguments": "{}"}
    custom = {"type": "custom_tool_call", "call_id": "2", "name": "patch", "input": "x"}
    reply = drawn(thought, message(said), call, custom, {"type": "of the future"})
    calls = (ToolCall("go", "{}", "1"), ToolCall("patch", "x", "2", "custom"))
    assert (reply.message.content, reply.message.tool_calls) == ("I go.", calls)
    assert [one.id for one in reply.message.tool_calls] == ["1", "2"]
    assert reply.message.wire is not None
    assert reply.message.wire["reasoning_content"] == "hm"
    assert reply.logprobs == {"content": [{"token": "I"}]}
    assert reply.logprob is None
    assert reply.finish_reason == "tool_calls"


def test_a_summary_is_told_where_the_reasoning_is_encrypted() -> None:
    parts = [{"type": "summary_text", "text": text} for text in ("I looked.", "I found it.")]
    reply = drawn({"type": "reasoning", "summary": parts, "encrypted_content": "x"}, message({"text": "I go."}))
    assert reply.message.wire is not None
    assert reply.message.wire["reasoning_content"] == "I looked.\nI found it."


def test_a_refusal_is_one() -> None:
    reply = drawn(message({"type": "refusal", "refusal": "no"}))
    assert reply.message.wire is not None
    assert reply.message.wire["refusal"] == "no"


def test_a_response_that_was_cut_off_says_so() -> None:
    cut = {"status": "incomplete", "incomplete_details": {"reason": "max_output_tokens"}}
    reply = drawn(message({"type": "output_text", "text": "I"}), **cut)
    assert (reply.finish_reason, reply.finished) == ("length", False)


def test_usage_is_the_upstreams() -> None:
    usage = {
        "input_tokens": 9,
        "input_tokens_details": {"cached_tokens": 4},
        "output_tokens": 5,
        "output_tokens_details": {"reasoning_tokens": 3},
    }
    expected = TokenUsage(9, 5, 4, {"reasoning_tokens": 3})
    assert drawn(message(), usage=usage).spent == expected


@pytest.mark.parametrize(
    "answer",
    [
        b"<html>",
        b"[]",
        b"{}",
        b'{"status": "failed", "output": [], "error": {"message": "no"}}',
        b'{"output": [{"type": "message", "content": [{"text": "go", "logprobs": 5}]}]}',
        b'{"output": [{"type": "message", "content": [{"text": "go", "logprobs": [5]}]}]}',
        b'{"output": [{"type": "message", "content": [{"text": ["go"]}]}]}',
    ],
)
def test_anything_else_is_no_response(answer: bytes) -> None:
    assert DIALECT.read_answer(answer).candidates == []


def test_calls_of_openais_own_tools_are_read_as_calls() -> None:
    shell = {"type": "shell_call", "call_id": "c1", "action": {"commands": ["ls"]}}
    patch = {"type": "apply_patch_call", "call_id": "c2", "operation": {"type": "delete_file"}}
    click, wait = {"type": "click", "button": "left", "x": 1, "y": 2}, {"type": "wait"}
    computer = {"type": "computer_call", "call_id": "c3", "actions": [click, wait], "action": None}
    preview = {"type": "computer_call", "call_id": "c4", "action": click}
    candidate = drawn(shell, patch, computer, preview)
    assert candidate.message.tool_calls == (
        ToolCall("shell", '{"commands": ["ls"]}', "c1"),
        ToolCall("apply_patch", '{"type": "delete_file"}', "c2"),
        ToolCall("computer", json.dumps({"actions": [click, wait]}), "c3"),
        ToolCall("computer_use_preview", json.dumps(click), "c4"),
    )
    assert candidate.native is not None
    assert candidate.native.body["output"] == [shell, patch, computer, preview]

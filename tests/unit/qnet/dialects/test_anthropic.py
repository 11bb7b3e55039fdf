"""Anthropic's dialect, from chat turns and back."""

import json
from typing import Any

import pytest

from qguide.qnet.dialects.anthropic_requests import MAX_TOKENS
from qguide.qnet.errors import InvalidRequestError
from qguide.qnet.native_requests import NativeRequest
from qguide.qnet.policies.upstream_dialects import MESSAGES as DIALECT
from qguide.qnet.types import Candidate, History, Message, Sampling, ToolCall
from qguide.qnet.work import TokenUsage
from tests.support.upstream_policy import TOOL


def body(*history: Message, **sampling: Any) -> dict[str, Any]:
    given = {"temperature": None, "max_tokens": None} | sampling
    return DIALECT.request_body("m", history, n=1, sampling=Sampling(**given))


def drawn(*blocks: dict[str, Any], **more: Any) -> Candidate:
    answer = {"type": "message", "content": list(blocks), **more}
    [candidate] = DIALECT.read_answer(json.dumps(answer).encode()).candidates
    return candidate


def text(said: str) -> dict[str, str]:
    return {"type": "text", "text": said}


def test_breakpoints_of_the_cache_reach_the_upstream_from_parts_turns_and_tools() -> None:
    cached: Any = {"cache_control": {"type": "ephemeral"}}
    parts = [text("look"), text("at the desk") | cached]
    tool = TOOL | cached
    asked = body(
        Message("system", "be brief", wire={"role": "system", "content": [text("be brief") | cached]}),
        Message("user", "look\nat the desk", wire={"role": "user", "content": parts}),
        Message("assistant", "", (ToolCall("go", "{}", "1"),)),
        Message("tool", "x", tool_call_id="1", wire={"role": "tool", "tool_call_id": "1", "content": "x"} | cached),
        parameters={"tools": [tool]},
    )
    assert asked["system"] == [text("be brief") | cached]
    assert asked["messages"][0]["content"] == parts
    assert asked["messages"][-1]["content"][-1]["cache_control"] == {"type": "ephemeral"}
    assert asked["tools"][0]["cache_control"] == {"type": "ephemeral"}


def test_system_messages_go_before_and_a_role_never_follows_itself() -> None:
    asked = body(
        Message("system", "be brief"),
        Message("developer", "be kind"),
        Message("user", "find the mug"),
        Message("assistant", "", (ToolCall("a", "{}", "1"), ToolCall("b", "{}", "2"))),
        Message("tool", "x", tool_call_id="1"),
        Message("tool", "", tool_call_id="2"),
        Message("system", "hurry"),
    )
    assert asked["system"] == "be brief\n\nbe kind"
    assert [turn["role"] for turn in asked["messages"]] == ["user", "assistant", "user"]
    first, second, said = asked["messages"][-1]["content"]
    assert (first["tool_use_id"], first["content"]) == ("1", [text("x")])
    assert (second["tool_use_id"], second["content"]) == ("2", [])
    assert said == text("hurry")
    assert asked["max_tokens"] == MAX_TOKENS


def test_system_messages_alone_leave_a_turn_to_answer() -> None:
    asked = body(Message("system", "be brief"), Message("system", "find the mug"))
    assert asked["system"] == "be brief"
    assert asked["messages"] == [{"role": "user", "content": [text("find the mug")]}]


def test_an_assistant_that_speaks_first_answers_an_opening_of_the_user() -> None:
    asked = body(Message("assistant", "How can I help?"), Message("user", "find the mug"))
    assert [turn["role"] for turn in asked["messages"]] == ["user", "assistant", "user"]
    assert asked["messages"][0]["content"][0]["text"]


def test_allowed_tools_are_the_only_ones_that_are_sent() -> None:
    tools = [{"type": "function", "function": {"name": name}} for name in ("look", "go", "take")]
    allowed = {"mode": "required", "tools": tools[1:]}
    choice = {"type": "allowed_tools", "allowed_tools": allowed}
    asked = body(Message("user", "go"), parameters={"tools": tools, "tool_choice": choice})
    assert [tool["name"] for tool in asked["tools"]] == ["go", "take"]
    assert asked["tool_choice"] == {"type": "any"}


@pytest.mark.parametrize(
    ("choice", "said"),
    [
        ({"type": "allowed_tools", "mode": "auto", "tools": []}, 'tool_choice .*"allowed_tools": {"mode": "auto"'),
        (
            {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": []}},
            'tool_choice .*"allowed_tools": {"mode": "auto"',
        ),
        ({"type": "function", "name": "look"}, 'tool_choice .*"function": {"name":'),
    ],
)
def test_a_choice_of_tools_that_names_none_is_refused(choice: dict[str, Any], said: str) -> None:
    tools = [{"type": "function", "function": {"name": "look"}}]
    with pytest.raises(InvalidRequestError, match=said):
        body(Message("user", "go"), parameters={"tools": tools, "tool_choice": choice})


def test_the_address_of_an_image_may_stand_alone() -> None:
    image = {"type": "image_url", "image_url": "data:image/png;base64,AA=="}
    wire = {"role": "user", "content": [image]}
    [turn] = body(Message("user", "", wire=wire))["messages"]
    source = {"type": "base64", "media_type": "image/png", "data": "AA=="}
    assert turn["content"] == [{"type": "image", "source": source}]


def test_where_no_one_has_said_anything_the_user_opens() -> None:
    [turn] = body(Message("user", ""))["messages"]
    assert (turn["role"], turn["content"]) == ("user", [text("(no message yet)")])


def test_the_schema_of_a_tool_is_an_objects_also_where_it_refers_to_one() -> None:
    refers = {"$defs": {"N": {"type": "object"}}, "$ref": "#/$defs/N"}
    tool = {"type": "function", "function": {"name": "go", "parameters": refers}}
    [sent] = body(Message("user", "go"), parameters={"tools": [tool]})["tools"]
    assert sent["input_schema"] == {"type": "object"} | refers


def test_arguments_that_are_no_object_come_and_go_as_they_were() -> None:
    call = {"type": "tool_use", "id": "1", "name": "go", "input": {"INVALID_JSON": '{"to'}}
    said = drawn(call, stop_reason="max_tokens")
    assert said.message.tool_calls[0].arguments == '{"to'
    assert (said.finish_reason, said.finished) == ("length", False)
    asked = body(Message("user", "go"), said.message)
    assert asked["messages"][1]["content"] == [call]


def test_tools_and_the_choice_between_them() -> None:
    tool = {"type": "function", "function": {"name": "look", "strict": True}}
    chosen = {"type": "function", "function": {"name": "look"}}
    given = {"tools": [tool], "tool_choice": chosen, "parallel_tool_calls": False}
    asked = body(Message("user", "go"), parameters=given)
    empty = {"type": "object", "properties": {}, "additionalProperties": False}
    assert asked["tools"] == [{"name": "look", "strict": True, "input_schema": empty}]
    one = {"type": "tool", "name": "look", "disable_parallel_tool_use": True}
    assert asked["tool_choice"] == one


@pytest.mark.parametrize(("choice", "expected"), [("required", "any"), ("auto", "auto"), ("none", "none")])
def test_modes_of_choice(choice: str, expected: str) -> None:
    tool = {"type": "function", "function": {"name": "look"}}
    asked = body(Message("user", "go"), parameters={"tools": [tool], "tool_choice": choice})
    assert asked["tool_choice"] == {"type": expected}


def test_other_parameters_have_anthropics_names() -> None:
    given = {
        "stop": "END",
        "user": "me",
        "reasoning_effort": "low",
        "max_completion_tokens": 7,
        "response_format": {"type": "text"},
        "top_k": 3,
        "prompt_cache_key": "session",
        "prompt_cache_retention": "24h",
    }
    asked = body(Message("user", "go"), parameters=given)
    assert {name: asked[name] for name in asked if name not in ("model", "messages")} == {
        "stop_sequences": ["END"],
        "metadata": {"user_id": "me"},
        "output_config": {"effort": "low"},
        "max_tokens": 7,
        "top_k": 3,
    }


@pytest.mark.parametrize(
    ("more", "thinks"),
    [
        ({}, False),
        ({"reasoning_effort": "high", "top_k": 3}, True),
        ({"reasoning": {"summary": "auto"}}, True),
        ({"reasoning_effort": "none"}, False),
        ({"reasoning_effort": "minimal"}, False),
        ({"reasoning_effort": "high", "top_p": 0.5}, False),
        ({"reasoning_effort": "high", "tools": [TOOL], "tool_choice": "required"}, False),
        ({"reasoning_effort": "high", "max_completion_tokens": 7}, False),
    ],
)
def test_thoughts_are_switched_on_where_a_chat_asks_for_them_and_they_can_be(
    more: dict[str, Any], thinks: bool
) -> None:
    asked = body(Message("user", "go"), parameters=more)
    assert asked.get("thinking") == ({"type": "adaptive"} if thinks else None)
    assert ("top_k" in asked) == ("top_k" in more and not thinks)
    assert (asked.get("output_config") or {}).get("effort") in (None, "low", "high")


@pytest.mark.parametrize(
    "parameters",
    [{"response_format": {"type": "json_schema"}}, {"tools": [{"type": "custom", "custom": {"name": "x"}}]}],
)
def test_a_parameter_without_a_counterpart_is_refused(parameters: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequestError, match=r"dialect 'messages'|json_schema"):
        body(Message("user", "go"), parameters=parameters)


def test_json_without_a_schema_is_left_to_the_prompt() -> None:
    asked = body(Message("user", "JSON"), parameters={"response_format": {"type": "json_object"}})
    assert "output_config" not in asked


def test_schemas_are_closed_and_their_limits_are_told() -> None:
    size = {"type": "integer", "minimum": 1, "maximum": 9, "description": "its size"}
    parts = {"type": "array", "minItems": 1, "items": {"$ref": "#/$defs/part"}}
    either = {"oneOf": [{"type": "null"}, {"type": "object", "properties": {}}]}
    schema = {
        "type": "object",
        "properties": {"size": size, "parts": parts, "either": either},
        "required": ["size"],
        "$defs": {"part": {"type": ["object", "null"], "properties": {"id": {"type": "string"}}}},
    }
    form = {"type": "json_schema", "json_schema": {"name": "a", "schema": schema}}
    asked = body(Message("user", "go"), parameters={"response_format": form})
    shut = {"additionalProperties": False}
    told = {"type": "integer", "description": "its size (maximum: 9, minimum: 1)"}
    anything = {"anyOf": [{"type": "null"}, {"type": "object", "properties": {}} | shut]}
    assert asked["output_config"]["format"]["schema"] == shut | {
        "type": "object",
        "properties": {"size": told, "parts": parts, "either": anything},
        "required": ["size"],
        "$defs": {"part": schema["$defs"]["part"] | shut},  # type: ignore[index]
    }


def test_cached_tokens_are_part_of_the_prompt() -> None:
    usage = {"input_tokens": 2, "cache_read_input_tokens": 5, "cache_creation_input_tokens": 3, "output_tokens": 4}
    assert drawn(text("go"), usage=usage).spent == TokenUsage(10, 4, 5, written_tokens=3)


def test_the_stop_sequence_is_named() -> None:
    said = drawn(text("go"), stop_reason="stop_sequence", stop_sequence="END")
    assert (said.finish_reason, said.extra) == ("stop", {"stop_reason": "END"})


def test_thoughts_are_kept_for_the_next_request() -> None:
    thought = {"type": "thinking", "thinking": "hm", "signature": "s"}
    said = drawn(thought, text("go"))
    assert said.message.content == "go"
    assert said.message.wire is not None
    assert said.message.wire["reasoning_content"] == "hm"
    asked = body(Message("user", "go"), said.message)
    assert asked["messages"][1]["content"] == [thought, text("go")]


@pytest.mark.parametrize(
    "answer",
    [
        b"<html>",
        b"[]",
        b'{"content": "text"}',
        b"{}",
        b'{"content": [{"type": "text", "text": 5}]}',
        b'{"content": [{"type": "thinking", "thinking": {"a": 1}}]}',
    ],
)
def test_anything_else_is_no_message(answer: bytes) -> None:
    assert DIALECT.read_answer(answer).candidates == []


def test_the_callers_own_request_stands_only_for_its_own_history() -> None:
    history: History = (Message("user", "find the mug"),)
    native = NativeRequest("messages", {"messages": "as they came", "max_tokens": 5}, history)
    sampling = Sampling(temperature=0.5, max_tokens=9, native=native)
    own = DIALECT.request_body("m", history, n=1, sampling=sampling)
    assert own == {"messages": "as they came", "max_tokens": 9, "model": "m", "temperature": 0.5}
    reworded: History = (Message("user", "find the mug"),)
    other = DIALECT.request_body("m", reworded, n=1, sampling=sampling)
    assert other["messages"] == [{"role": "user", "content": [text("find the mug")]}]

"""Parameters of a message, and the message that is answered."""

import json
from typing import Any

import pytest
from anthropic.types import beta
from jsonschema import Draft202012Validator

from qguide.qnet.chat_messages import plain_message
from qguide.qnet.decision.decision import Decision, StepUsage
from qguide.qnet.dialects.anthropic_answers import completion_of as upstreams
from qguide.qnet.dialects.anthropic_answers import events_of
from qguide.qnet.errors import InvalidRequestError, MalformedHistoryError, UnsupportedParameterError
from qguide.qnet.types import Candidate, Message, ToolCall
from qguide.qnet.work import TokenUsage
from qguide.server.anthropic.schemas import MessagesRequest
from qguide.server.anthropic.translation import answer_of, read_message
from qguide.server.chat.schemas import GuidanceOptions
from qguide.server.chat.translation import Translated, completion_of
from qguide.server.guidance.step_types import GuidedStepResult

TOOL = {"name": "go", "description": "Go.", "input_schema": {"type": "object"}}
WIRED = {"name": "go", "description": "Go.", "parameters": {"type": "object"}}


def read(**body: Any) -> Translated:
    asked = {"max_tokens": 5, "messages": [{"role": "user", "content": "find it"}]} | body
    return read_message(MessagesRequest.model_validate(asked))


def answer(candidate: Candidate, **body: Any) -> dict[str, Any]:
    spent = candidate.spent or TokenUsage(0, 0)
    usage = StepUsage(
        prompt_tokens=spent.prompt_tokens,
        completion_tokens=spent.completion_tokens,
        scored_tokens=0,
        cached_tokens=0,
        cached_prompt_tokens=spent.cached_tokens,
    )
    scored_by = {"q_model": "q", "q_model_version": "0", "judge": False}
    decision = Decision(0, "only_candidate", (candidate,), None, usage)
    taken = GuidedStepResult(decision, "demo", scored_by, 1.0)
    options = GuidanceOptions()
    return answer_of(completion_of(taken, n=1, options=options), read(**body))


def drawn(content: str = "", *calls: ToolCall, **more: Any) -> Candidate:
    return Candidate(Message("assistant", content, calls), 3, **more)


def thinking(field: str) -> Candidate:
    wire = {"role": "assistant", "content": "look", field: "I wonder."}
    return Candidate(Message("assistant", "look", wire=wire), 3)


def test_tools_that_anthropic_defines_are_described_as_documented() -> None:
    screen = {"type": "computer_20250124", "name": "computer", "display_width_px": 800}
    tools = [
        {"type": "bash_20250124", "name": "bash"},
        {"type": "text_editor_20250124", "name": "str_replace_editor"},
        {"type": "text_editor_20250728", "name": "str_replace_based_edit_tool"},
        {"type": "memory_20250818", "name": "memory"},
        screen | {"display_height_px": 600},
        screen | {"type": "computer_20251124"},
        screen | {"type": "computer_20251124", "enable_zoom": True},
    ]
    chat = read(tools=tools).chat.model_dump(exclude_unset=True)
    functions = [tool["function"] for tool in chat["tools"]]
    bash, old, new, memory, computer, newer, _ = functions
    assert bash["parameters"]["properties"].keys() == {"command", "restart"}
    commands = [tool["parameters"]["properties"]["command"]["enum"] for tool in (old, new, memory)]
    edits = ["view", "create", "str_replace", "insert"]
    assert commands == [[*edits, "undo_edit"], edits, [*edits, "delete", "rename"]]
    assert "insert_text" not in old["parameters"]["properties"]
    assert {"insert_text", "view_range"} <= new["parameters"]["properties"].keys()
    assert memory["parameters"]["required"] == ["command"]
    assert new["parameters"]["required"] == ["command", "path"]
    assert "scroll" in newer["parameters"]["properties"]["action"]["enum"]
    actions = [one["parameters"]["properties"]["action"]["enum"] for one in functions[-3:]]
    assert ["zoom" in each for each in actions] == [False, False, True]
    assert computer["description"].endswith("display_width_px is 800. display_height_px is 600.")
    for function in functions:
        Draft202012Validator.check_schema(function["parameters"])


TOOLSETS = {family: f"{family}_toolset_20260801" for family in ("browser", "computer")}


@pytest.mark.parametrize("family", TOOLSETS)
def test_a_toolsets_tools_have_the_fields_that_anthropics_sdk_reads(family: str) -> None:
    configs = getattr(beta, f"Beta{family.title()}ToolsetConfigsParam").__annotations__
    switched_on = {name: {"enabled": True} for name in configs}
    chat = read(tools=[{"type": TOOLSETS[family], "configs": switched_on}]).chat
    functions = [tool["function"] for tool in chat.model_dump(exclude_unset=True)["tools"]]
    assert {function["name"] for function in functions} == {f"{family}__{n}" for n in configs}
    for function in functions:
        Draft202012Validator.check_schema(function["parameters"])
        member = function["name"].partition("__")[2].title().replace("_", "")
        fields = getattr(beta, f"Beta{family.title()}{member}Input").model_fields
        theirs = {field.alias or name: field.is_required() for name, field in fields.items()}
        theirs.pop("document_ids", None)  # files that only Anthropic holds
        needed = function["parameters"]["required"]
        optional_here = {"paths", "scroll_amount"}  # a model without its own training says them
        ours = {name: name in needed for name in function["parameters"]["properties"]}
        assert ours.keys() == theirs.keys(), function["name"]
        for name in theirs.keys() - optional_here:
            assert ours[name] == theirs[name], (function["name"], name)


def test_a_toolsets_tools_are_left_out_where_they_are_off_or_deferred() -> None:
    def names(family: str, **configs: Any) -> set[str]:
        chat = read(tools=[{"type": TOOLSETS[family], "configs": configs or None}, TOOL]).chat
        tools = chat.model_dump(exclude_unset=True)["tools"]
        return {tool["function"]["name"] for tool in tools}

    assert {"browser__navigate", "go"} <= names("browser")
    assert "browser__javascript_exec" not in names("browser")
    assert "browser__javascript_exec" in names("browser", javascript_exec={"enabled": True})
    assert "computer__zoom" not in names("computer", zoom={"enabled": False})
    assert "computer__zoom" not in names("computer", zoom={"defer_loading": True})


def test_a_call_of_a_toolset_goes_out_and_comes_back() -> None:
    target = {"type": "ref", "ref": "ref_7"}
    call = ToolCall("browser__left_click", json.dumps({"target": target}), "c1")
    tools = [{"type": TOOLSETS["browser"]}]
    message = answer(drawn("", call), tools=tools)
    [block] = message["content"]
    assert (block["name"], block["toolset_name"]) == ("left_click", "browser")
    state = {"type": "browser_state", "tabs": [{"tab_id": "1", "title": "A", "url": "a.org"}]}
    result = {"type": "tool_result", "tool_use_id": block["id"], "content": [state]}
    messages = [
        {"role": "user", "content": "find it"},
        {"role": "assistant", "content": message["content"]},
        {"role": "user", "content": [result]},
    ]
    _, called, told = read(messages=messages, tools=tools).chat.model_dump()["messages"]
    assert called["tool_calls"][0]["function"]["name"] == call.name
    assert told["content"].startswith("Browser: ")
    assert "a.org" in told["content"]


def test_a_tool_that_is_called_as_a_toolset_is_no_part_of_it() -> None:
    own = {"name": "browser", "input_schema": {"type": "object"}}
    message = answer(drawn("", ToolCall("browser", "{}", "c1")), tools=[{"type": TOOLSETS["browser"]}, own])
    [block] = message["content"]
    assert (block["name"], block.get("toolset_name")) == ("browser", None)


def test_a_call_of_a_toolset_is_read_in_an_upstreams_answer() -> None:
    use = {"type": "tool_use", "id": "c", "name": "key", "toolset_name": "computer", "input": {}}
    said = upstreams({"content": [use], "stop_reason": "tool_use"})
    [called] = said["choices"][0]["message"]["tool_calls"]
    assert called["function"]["name"] == "computer__key"


def test_only_a_toolset_has_no_name() -> None:
    with pytest.raises(MalformedHistoryError, match=r"^tools\[0\]\.name\b"):
        read(tools=[{"input_schema": {"type": "object"}}])


def test_parameters_get_the_names_of_a_chat_completion() -> None:
    asked = read(
        model="demo",
        temperature=0.5,
        top_p=0.9,
        top_k=4,
        stop_sequences=["\n"],
        tools=[TOOL | {"cache_control": {"type": "ephemeral"}}],
        tool_choice={"type": "any", "disable_parallel_tool_use": True},
        metadata={"user_id": "anna"},
        repetition_penalty=1.1,
    )
    assert (asked.chat.model, asked.chat.max_tokens, asked.chat.temperature) == ("demo", 5, 0.5)
    assert asked.chat.parameters == {
        "top_p": 0.9,
        "top_k": 4,
        "stop": ["\n"],
        "tools": [{"type": "function", "function": WIRED}],
        "tool_choice": "required",
        "parallel_tool_calls": False,
        "user": "anna",
        "repetition_penalty": 1.1,
    }
    assert asked.stop_sequences == ["\n"]
    assert asked.warnings == ()


@pytest.mark.parametrize(
    ("choice", "wired"),
    [
        ({"type": "auto"}, "auto"),
        ({"type": "none"}, "none"),
        ({"type": "tool", "name": "go"}, {"type": "function", "function": {"name": "go"}}),
    ],
)
def test_a_tool_choice_is_a_chat_completions(choice: Any, wired: Any) -> None:
    parameters = read(tools=[TOOL], tool_choice=choice).chat.parameters
    assert parameters["tool_choice"] == wired
    assert "parallel_tool_calls" not in parameters


def test_a_choice_among_no_tools_is_left_out() -> None:
    choice = {"type": "auto", "disable_parallel_tool_use": True}
    assert not {"tool_choice", "parallel_tool_calls"} & read(tool_choice=choice).chat.parameters.keys()


def test_a_structured_answer_is_a_response_format() -> None:
    place = {"type": "object", "properties": {"place": {"type": "string"}}}
    optional = place | {"additionalProperties": False}
    strict = optional | {"required": ["place"]}
    nested = strict | {"properties": {"place": {"anyOf": [optional, {"type": "null"}]}}}
    odd = strict | {"required": [{}], "anyOf": {"type": 5}, "$defs": 3}
    for schema, is_strict in ((place, False), (optional, False), (strict, True), (nested, False), (odd, False)):
        asked = read(output_config={"format": {"type": "json_schema", "schema": schema}})
        form = asked.chat.parameters["response_format"]["json_schema"]
        assert form == {"name": "answer", "schema": schema} | ({"strict": True} if is_strict else {})
        tool = {"name": "look", "input_schema": schema, "strict": True}
        [function] = read(tools=[tool]).chat.parameters["tools"]
        assert ("strict" in function["function"]) is is_strict


def test_parameters_that_no_chat_completion_has_are_named() -> None:
    foreign = {"type": "thinking", "thinking": "secret", "signature": "EqQBCkYIBhgC"}
    messages = [
        {"role": "user", "content": "find it"},
        {"role": "assistant", "content": [foreign, {"type": "text", "text": "look"}]},
        {"role": "user", "content": "a mug"},
    ]
    asked = read(messages=messages, service_tier="auto", fallbacks=[], n="many", output_config={"effort": "high"})
    assert asked.chat.parameters == {}
    parameters, thoughts = asked.warnings
    assert parameters == ("parameters without effect on this server: fallbacks, n, output_config.effort, service_tier")
    assert thoughts.startswith("1 thinking blocks were left out")
    assert answer(drawn("look"), speed="fast")["qguide"]["warnings"] == [
        "parameters without effect on this server: speed"
    ]


def test_a_deferred_tool_comes_when_a_search_has_found_it() -> None:
    tools = [TOOL, TOOL | {"name": "fly", "defer_loading": True}]
    assert _names(read(tools=tools)) == ["go"]
    assert "tools" not in read(tools=tools[1:]).chat.parameters
    search = {"type": "tool_use", "id": "1", "name": "search", "input": {}}
    found = {"type": "tool_reference", "tool_name": "fly"}
    result = {"type": "tool_result", "tool_use_id": "1", "content": [found]}
    messages = [{"role": "assistant", "content": [search]}, {"role": "user", "content": [result]}]
    asked = read(tools=tools, messages=messages)
    assert _names(asked) == ["go", "fly"]
    assert asked.chat.messages[-1].content == "The tool fly can be called now."


def _names(asked: Translated) -> list[str]:
    return [tool["function"]["name"] for tool in asked.chat.parameters["tools"]]


def test_a_tool_of_anthropics_is_refused_by_name() -> None:
    with pytest.raises(UnsupportedParameterError, match=r"tools\[1\] \('web_search', type 'web_s"):
        read(tools=[TOOL, {"name": "web_search", "type": "web_search_20260318"}])
    with pytest.raises(InvalidRequestError, match=r"^tool_choice .*'tool'.* name"):
        read(tools=[TOOL], tool_choice={"type": "tool"})


@pytest.mark.parametrize(
    ("candidate", "reason", "sequence"),
    [
        (drawn("look"), "end_turn", None),
        (drawn("look", finished=False), "max_tokens", None),
        (drawn("look", finish_reason="length"), "max_tokens", None),
        (drawn("look", finish_reason="content_filter"), "refusal", None),
        (drawn("look", finish_reason="unheard of"), "end_turn", None),
        (drawn("", ToolCall("go", "{}"), finish_reason="stop"), "tool_use", None),
        (drawn("", ToolCall("go", '{"to'), finish_reason="length"), "max_tokens", None),
        (drawn("look", finish_reason="stop", extra={"stop_reason": "END"}), "stop_sequence", "END"),
        (drawn("look", finish_reason="stop", extra={"stop_reason": 128009}), "end_turn", None),
    ],
)
def test_the_reason_for_the_end_is_one_of_anthropics(candidate: Candidate, reason: str, sequence: str | None) -> None:
    message = answer(candidate, stop_sequences=["END"])
    assert (message["stop_reason"], message["stop_sequence"]) == (reason, sequence)


def test_text_and_calls_are_blocks() -> None:
    call = ToolCall("go", '{"to": "desk"}', "call_1")
    message = answer(drawn("Well.", call, ToolCall("go", '{"to": "de')))
    text, whole, cut = message["content"]
    assert text == {"type": "text", "text": "Well."}
    assert whole == {"type": "tool_use", "id": "call_1", "name": "go", "input": {"to": "desk"}}
    assert cut["id"].startswith("call_")
    assert cut["input"] == {"INVALID_JSON": '{"to": "de'}
    [warning] = message["qguide"]["warnings"]
    assert "the call of 'go' are not a JSON object" in warning


def test_a_refusal_is_a_text() -> None:
    wire = {"role": "assistant", "content": None, "refusal": "No."}
    message = answer(Candidate(Message("assistant", "", wire=wire), 3))
    assert message["content"] == [{"type": "text", "text": "No."}]


@pytest.mark.parametrize("field", ["reasoning_content", "reasoning"])
def test_thoughts_are_a_block_if_they_were_asked_for(field: str) -> None:
    enabled = {"type": "enabled", "budget_tokens": 1024}
    thought, text = answer(thinking(field), thinking=enabled)["content"]
    assert (thought["type"], thought["thinking"]) == ("thinking", "I wonder.")
    assert [text] == answer(thinking(field))["content"]
    assert [text] == answer(thinking(field), thinking={"type": "disabled"})["content"]
    again = read(messages=[{"role": "assistant", "content": [thought, text]}])
    [turn] = again.chat.messages
    assert (turn.model_extra or {})[field] == "I wonder."


def test_cached_tokens_are_not_in_the_inputs() -> None:
    spent = TokenUsage(10, 6, 7, {"reasoning_tokens": 2})
    assert answer(drawn("look", spent=spent))["usage"] == {
        "input_tokens": 3,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": 7,
        "output_tokens": 6,
        "output_tokens_details": {"thinking_tokens": 2},
    }


def test_a_stream_is_the_message_in_pieces() -> None:
    call = ToolCall("go", '{"to": "desk"}', "call_1")
    wire = plain_message(Message("assistant", "look here", (call,))) | {"reasoning": "I wonder."}
    candidate = Candidate(Message("assistant", "look here", (call,), wire=wire), 3)
    message = answer(candidate, thinking={"type": "adaptive"})
    events = list(events_of(message))
    kinds = [event["type"] for event in events]
    assert kinds[0] == "message_start"
    assert kinds[-2:] == ["message_delta", "message_stop"]
    assert events[0]["message"]["content"] == []
    assert events[0]["message"]["qguide"] == message["qguide"]
    assert events[-2]["delta"]["stop_reason"] == "tool_use"
    assert [_joined(events, index) for index in range(3)] == message["content"]


def _joined(events: list[dict[str, Any]], index: int) -> dict[str, Any]:
    """A block put together again from its events, as clients do it."""
    [start, *deltas, stop] = [event for event in events if event.get("index") == index]
    assert (start["type"], stop["type"]) == ("content_block_start", "content_block_stop")
    block, raw = dict(start["content_block"]), ""
    for delta in (event["delta"] for event in deltas):
        match delta["type"]:
            case "text_delta":
                block["text"] += delta["text"]
            case "thinking_delta":
                block["thinking"] += delta["thinking"]
            case "signature_delta":
                block["signature"] += delta["signature"]
            case "input_json_delta":
                raw += delta["partial_json"]
    return block | ({"input": json.loads(raw)} if raw else {})

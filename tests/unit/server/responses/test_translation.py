"""Responses requests become chat completion requests, and tools those of a chat."""

from typing import Any

import pytest
from jsonschema import Draft202012Validator

from qguide.qnet.errors import InvalidRequestError, UnsupportedParameterError
from qguide.server.responses.schemas import ResponsesRequest
from qguide.server.responses.translation import to_chat_request

FUNCTION: Any = {"type": "function", "name": "go", "parameters": {"type": "object"}, "strict": True}


def chat_of(**body: Any) -> dict[str, Any]:
    request = ResponsesRequest.model_validate({"input": "x"} | body)
    return to_chat_request(request).model_dump(exclude_none=True, exclude={"messages", "qguide"})


def test_parameters_have_their_names_in_a_chat() -> None:
    assert chat_of(
        max_output_tokens=7,
        temperature=0.5,
        top_p=0.9,
        presence_penalty=0.5,
        frequency_penalty=-0.5,
        service_tier="flex",
        safety_identifier="someone",
        prompt_cache_key="a-key",
        reasoning={"effort": "low", "summary": "auto"},
        text={"format": {"type": "text"}, "verbosity": "low"},
        include=["message.output_text.logprobs", "reasoning.encrypted_content"],
        top_logprobs=2,
        seed=3,
        top_k=5,
    ) == {
        "max_tokens": 7,
        "temperature": 0.5,
        "top_p": 0.9,
        "presence_penalty": 0.5,
        "frequency_penalty": -0.5,
        "service_tier": "flex",
        "safety_identifier": "someone",
        "prompt_cache_key": "a-key",
        "reasoning": {"summary": "auto"},
        "reasoning_effort": "low",
        "verbosity": "low",
        "logprobs": True,
        "top_logprobs": 2,
        "seed": 3,
        "top_k": 5,
    }


def test_what_upstreams_refuse_or_do_not_know_is_kept_back() -> None:
    assert (
        chat_of(
            store=False,
            metadata={"a": "b"},
            truncation="auto",
            background=False,
            previous_response_id=None,
            stream_options={"include_obfuscation": False},
            max_tool_calls=3,
            client_metadata={"x": "y"},
            tools=[],
            tool_choice="auto",
            parallel_tool_calls=True,
        )
        == {}
    )


@pytest.mark.parametrize(
    ("format_", "chat_format"),
    [
        ({"type": "json_object"}, {"type": "json_object"}),
        (
            {"type": "json_schema", "name": "Place", "schema": {"type": "object"}, "strict": True},
            {"type": "json_schema", "json_schema": {"name": "Place", "schema": {"type": "object"}, "strict": True}},
        ),
    ],
)
def test_a_text_format_is_a_response_format(format_: Any, chat_format: Any) -> None:
    assert chat_of(text={"format": format_})["response_format"] == chat_format


def test_tools_are_nested() -> None:
    grammar = {"type": "grammar", "syntax": "lark", "definition": "start: WORD"}
    custom = {"type": "custom", "name": "shell", "description": "Run it.", "format": grammar}
    assert chat_of(tools=[FUNCTION, custom], parallel_tool_calls=False) == {
        "parallel_tool_calls": False,
        "tools": [
            {"type": "function", "function": {"name": "go", "parameters": {"type": "object"}, "strict": True}},
            {
                "type": "custom",
                "custom": {
                    "name": "shell",
                    "description": "Run it.",
                    "format": {"type": "grammar", "grammar": {"syntax": "lark", "definition": "start: WORD"}},
                },
            },
        ],
    }


def test_openais_own_tools_that_the_caller_runs_are_functions() -> None:
    kinds = ["shell", "local_shell", "apply_patch", "computer", "computer_use_preview"]
    local = {"environment": {"type": "local"}}
    browser = {"environment": "browser", "display_width": 1024, "display_height": 768}
    more: Any = {"shell": local, "computer_use_preview": browser}
    tools = [{"type": kind} | more.get(kind, {}) for kind in kinds]
    chat = chat_of(tools=tools, tool_choice={"type": "apply_patch"})
    functions = [tool["function"] for tool in chat["tools"]]
    assert [function["name"] for function in functions] == kinds
    for function in functions:
        Draft202012Validator.check_schema(function["parameters"])
    assert "Its display (browser) has 1024 by 768 pixels." in functions[-1]["description"]
    assert chat["tool_choice"] == {"type": "function", "function": {"name": "apply_patch"}}
    with pytest.raises(
        UnsupportedParameterError, match=r"^tools\[0\]\.environment .*'container_auto', .*function, .*local_shell"
    ):
        chat_of(tools=[{"type": "shell", "environment": {"type": "container_auto"}}])


def test_the_tools_of_a_namespace_lie_beside_the_others() -> None:
    group = {"type": "namespace", "name": "agents", "description": "x", "tools": [FUNCTION]}
    choice = {"type": "function", "name": "go", "namespace": "agents"}
    chat = chat_of(tools=[FUNCTION, group], tool_choice=choice)
    assert [tool["function"]["name"] for tool in chat["tools"]] == ["go", "agents__go"]
    assert chat["tool_choice"]["function"] == {"name": "agents__go"}


@pytest.mark.parametrize(
    ("choice", "chat_choice"),
    [
        ("required", "required"),
        ({"type": "function", "name": "go"}, {"type": "function", "function": {"name": "go"}}),
        ({"type": "custom", "name": "sh"}, {"type": "custom", "custom": {"name": "sh"}}),
        (
            {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "go"}]},
            {
                "type": "allowed_tools",
                "allowed_tools": {"mode": "auto", "tools": [{"type": "function", "function": {"name": "go"}}]},
            },
        ),
    ],
)
def test_a_tool_choice_is_nested(choice: Any, chat_choice: Any) -> None:
    assert chat_of(tools=[FUNCTION], tool_choice=choice)["tool_choice"] == chat_choice


@pytest.mark.parametrize(
    ("body", "parameter", "said"),
    [
        ({"previous_response_id": "resp_1"}, "previous_response_id", "send the items of the"),
        ({"conversation": "conv_1"}, "conversation", "stores no responses"),
        ({"conversation": {"id": "conv_1"}}, "conversation", "stores no responses"),
        ({"prompt": {"id": "pmpt_1"}}, "prompt", "as `instructions`"),
        ({"context_management": [{"type": "compaction"}]}, "context_management", "shorten"),
        ({"max_tokens": 3}, "max_tokens", "send max_output_tokens"),
        ({"tools": [{"type": "web_search"}]}, "tools", "tools[0] is 'web_search', which"),
        ({"tools": [FUNCTION], "tool_choice": {"type": "mcp"}}, "tool_choice", "is 'mcp'"),
        ({"tools": [FUNCTION], "tool_choice": "often"}, "tool_choice", "is 'often'"),
    ],
)
def test_what_needs_more_than_a_chat_is_refused_with_its_remedy(body: Any, parameter: str, said: str) -> None:
    with pytest.raises(UnsupportedParameterError) as refused:
        chat_of(**body)
    assert refused.value.parameter == parameter
    assert said in str(refused.value)


@pytest.mark.parametrize(
    ("tool", "said"),
    [
        ({"type": "function"}, "tools[0] (function) has no name"),
        ({"type": "namespace", "name": "a"}, "tools[0] (namespace) needs a name and tools"),
        ({"type": "namespace", "name": "a", "tools": [{"type": "custom"}]}, "tools[0].tools[0] (custom) has no name"),
    ],
)
def test_a_tool_without_a_name_is_refused(tool: Any, said: str) -> None:
    with pytest.raises(InvalidRequestError) as refused:
        chat_of(tools=[tool])
    assert said in str(refused.value)


def test_a_seed_that_is_none_is_refused_by_name() -> None:
    with pytest.raises(InvalidRequestError, match=r"^seed: .*integer"):
        chat_of(seed="often")


def test_a_stored_prompt_is_refused_by_name_also_without_an_input() -> None:
    request = ResponsesRequest.model_validate({"prompt": {"id": "pmpt_1"}})
    with pytest.raises(UnsupportedParameterError, match=r"^prompt .*`instructions` .*`input`"):
        to_chat_request(request)

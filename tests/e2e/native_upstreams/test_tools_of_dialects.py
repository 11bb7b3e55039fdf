"""Tools that a dialect defines and its caller runs go on to upstreams of that dialect."""

import json
from typing import Any

import anthropic
import pytest

from tests.support.dialect_upstream import DialectUpstream
from tests.support.native_clients import ASKED, DIALECTS, ONE, THREE, claude, gpt


def test_a_tool_that_anthropic_defines_and_the_caller_runs_goes_on_to_its_dialect(
    url: str, fake: DialectUpstream
) -> None:
    tools: Any = [{"type": "bash_20250124", "name": "bash"}]
    asked: Any = {"max_tokens": 99, "tools": tools, "extra_body": THREE}
    with claude(url) as client:
        first = client.messages.create(model="messages", messages=ASKED, **asked)
        [call] = [block for block in first.content if block.type == "tool_use"]
        result = {"type": "tool_result", "tool_use_id": call.id, "content": "a mug"}
        turns: Any = [*ASKED, {"role": "assistant", "content": first.content}]
        turns.append({"role": "user", "content": [result]})
        second = client.messages.create(model="messages", messages=turns, **asked)
        assert (first.stop_reason, call.name, second.role) == ("tool_use", "bash", "assistant")
        assert all(body["tools"] == tools for body in fake.asked)
        translated = client.messages.create(model="chat", messages=turns, **asked)
        assert translated.type == "message"
        [tool] = fake.asked[-1]["tools"]
        assert tool["function"]["parameters"]["properties"].keys() == {"command", "restart"}
        for policy, kind in (("chat", "memory_20990101"), ("messages", "web_search_20250305")):
            tools[0]["type"] = kind
            with pytest.raises(anthropic.BadRequestError, match="input_schema"):
                client.messages.create(model=policy, messages=ASKED, **asked)
        tools[0]["type"] = "bash_20250124"
        asked["extra_body"] = {"qguide": {"policies": [{"name": "chat", "n": 2}]}}
        pooled = client.messages.create(model="messages", messages=ASKED, **asked)
        assert pooled.type == "message"


def test_a_toolset_goes_on_to_its_dialect_and_is_functions_for_others(url: str, fake: DialectUpstream) -> None:
    toolset = {"type": "computer_toolset_20260801", "configs": {"zoom": {"enabled": False}}}
    asked: dict[str, Any] = {"max_tokens": 9, "tools": [toolset], "extra_body": {**ONE}}
    with claude(url) as client:
        client.beta.messages.create(model="messages", messages=ASKED, **asked)
        assert fake.asked[-1]["tools"] == [toolset]
        message = client.beta.messages.create(model="chat", messages=ASKED, **asked)
        names = {tool["function"]["name"] for tool in fake.asked[-1]["tools"]}
        assert "computer__left_click" in names
        assert "computer__zoom" not in names
        [use] = message.content
        assert use.type == "tool_use"
        assert use.model_dump()["toolset_name"] == "computer"
        result: Any = {"type": "tool_result", "tool_use_id": use.id, "content": "done"}
        turns: Any = [*ASKED, {"role": "assistant", "content": message.content}, {"role": "user", "content": [result]}]
        assert client.beta.messages.create(model="chat", messages=turns, **asked).content
        tabs = [{"tab_id": "1", "title": "", "url": "https://a.example", "active": True}]
        result["content"] = [{"type": "browser_state", "tabs": tabs}]
        assert client.beta.messages.create(model="messages", messages=turns, **asked).content
        assert fake.asked[-1]["messages"][-1]["content"] == [result]
        toolset["type"] = "computer_toolset_20990101"
        with pytest.raises(anthropic.BadRequestError, match="input_schema"):
            client.beta.messages.create(model="chat", messages=ASKED, **asked)


def test_openais_shell_goes_on_to_its_dialect_and_is_a_function_for_others(url: str, fake: DialectUpstream) -> None:
    tools: Any = [{"type": "shell", "environment": {"type": "local"}}]
    with gpt(url) as client:
        for name in DIALECTS:
            first = client.responses.create(model=name, input=ASKED, tools=tools, extra_body={**ONE})
            call = first.output[-1]
            assert call.type == "shell_call"
            assert call.action.commands
            wrote = {"stdout": "a", "stderr": "", "outcome": {"type": "exit", "exit_code": 0}}
            result: Any = {"type": "shell_call_output", "call_id": call.call_id, "output": [wrote]}
            second = client.responses.create(
                model=name, input=[result], previous_response_id=first.id, tools=tools, extra_body={**ONE}
            )
            assert second.output_text
            sent = fake.asked[-1]
            assert (sent["tools"] == tools) is (name == "responses")
            assert "exit_code" in json.dumps(sent)


@pytest.mark.parametrize("kind", ["computer", "computer_use_preview"])
def test_openais_computer_goes_on_to_its_dialect_and_is_a_function_for_others(
    url: str, fake: DialectUpstream, kind: str
) -> None:
    screen = {"display_width": 1024, "display_height": 768, "environment": "browser"}
    tools: Any = [{"type": kind} | (screen if "preview" in kind else {})]
    asked: Any = {"tools": tools, "truncation": "auto", "extra_body": {**THREE}}
    shot = {"type": "computer_screenshot", "image_url": "data:image/png;base64,AAAA"}
    check = {"id": "sc_1", "code": "malicious_instructions", "message": "Do you see it?"}
    with gpt(url) as client:
        for name in DIALECTS:
            first = client.responses.create(model=name, input=ASKED, **asked)
            call = first.output[-1]
            assert call.type == "computer_call"
            assert (call.actions if kind == "computer" else call.action) is not None
            result: Any = {"type": "computer_call_output", "call_id": call.call_id, "output": shot}
            result["acknowledged_safety_checks"] = [check]
            second = client.responses.create(model=name, input=[result], previous_response_id=first.id, **asked)
            assert second.output
            sent = fake.asked[-1]
            assert (sent["tools"] == tools) is (name == "responses")
            assert "AAAA" in json.dumps(sent)
            assert "Do you see it?" in json.dumps(sent)
            with client.responses.stream(model=name, input=ASKED, tools=tools) as stream:
                assert stream.get_final_response().output[-1].type == "computer_call"

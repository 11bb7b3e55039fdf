"""Responses and their events, made from chat completions."""

import json
from typing import Any

import pytest
from openai.types.responses import ResponseOutputItem
from pydantic import TypeAdapter

from qguide.qnet.dialects.responses_answers import closing_events, failure_events, opening_events
from qguide.qnet.errors import MalformedHistoryError
from qguide.server.http.event_stream import HEARTBEAT
from qguide.server.responses.output import ResponseWriter, failed, finished, opened
from qguide.server.responses.schemas import ResponsesRequest
from qguide.server.responses.translation import to_chat_request

BODY = ResponsesRequest.model_validate({"input": "find the mug", "metadata": {"a": "b"}})
USAGE: Any = {
    "prompt_tokens": 5,
    "completion_tokens": 3,
    "total_tokens": 8,
    "prompt_tokens_details": {"cached_tokens": 2},
    "completion_tokens_details": {"reasoning_tokens": 1},
}
CALL: Any = {"id": "c1", "type": "function", "function": {"name": "go", "arguments": "{}"}}
CUSTOM: Any = {"id": "c2", "type": "custom", "custom": {"name": "sh", "input": "ls"}}


def response_of(
    finish_reason: str = "stop", logprobs: Any = None, body: ResponsesRequest = BODY, **message: Any
) -> Any:
    choice = {
        "message": {"role": "assistant", "content": None} | message,
        "finish_reason": finish_reason,
        "logprobs": logprobs,
    }
    completion = {"choices": [choice], "usage": USAGE, "qguide": {"guided": True}}
    return finished(opened(body, model="demo", temperature=1.0), completion)


def test_a_text_is_a_message() -> None:
    response = response_of(content="I go.")
    [item] = response["output"]
    assert (item["type"], item["role"], item["status"]) == ("message", "assistant", "completed")
    assert item["id"].startswith("msg_")
    [part] = item["content"]
    assert part == {"type": "output_text", "text": "I go.", "annotations": [], "logprobs": []}
    assert (response["status"], response["model"], response["store"]) == ("completed", "demo", False)
    assert response["metadata"] == {"a": "b"}
    assert response["qguide"] == {"guided": True}


def test_what_was_not_given_has_openais_defaults() -> None:
    response = opened(BODY, model="demo", temperature=0.7)
    assert response["temperature"] == 0.7
    assert response["top_p"] == 1
    assert (response["presence_penalty"], response["frequency_penalty"]) == (0, 0)
    assert response["service_tier"] == "auto"
    for name in ("max_tool_calls", "safety_identifier", "prompt_cache_key"):
        assert response[name] is None


def test_what_was_given_is_repeated() -> None:
    given: Any = {
        "top_p": 0.0,
        "presence_penalty": 1.5,
        "frequency_penalty": -0.5,
        "max_tool_calls": 3,
        "service_tier": "flex",
        "safety_identifier": "someone",
        "prompt_cache_key": "a-key",
    }
    body = ResponsesRequest.model_validate({"input": "x"} | given)
    response = response_of(body=body, content="I go.")
    assert {name: response[name] for name in given} == given


@pytest.mark.parametrize(("said", "tier"), [("priority", "priority"), (None, "flex")])
def test_the_service_tier_is_an_upstreams_own_if_it_says_one(said: str | None, tier: str) -> None:
    body = ResponsesRequest.model_validate({"input": "x", "service_tier": "flex"})
    response = opened(body, model="demo", temperature=1.0)
    choice = {"message": {"content": "I go."}, "finish_reason": "stop"}
    completion: Any = {"choices": [choice], "usage": USAGE, "qguide": {}}
    assert finished(response, completion | {"service_tier": said})["service_tier"] == tier
    native: Any = {"output": [{"type": "message"}], "service_tier": said}
    assert finished(response, completion, native=native)["service_tier"] == tier


def test_tools_and_formats_have_all_their_fields() -> None:
    schema = {"type": "json_schema", "name": "Place", "schema": {"type": "object"}}
    tool = {"type": "function", "name": "go", "description": "Go."}
    body = ResponsesRequest.model_validate(
        {"input": "x", "tools": [tool], "text": {"format": schema, "verbosity": "low"}}
    )
    response = opened(body, model="demo", temperature=1.0)
    assert response["tools"] == [tool | {"parameters": None, "strict": None}]
    format_ = schema | {"description": None, "strict": False}
    assert response["text"] == {"format": format_, "verbosity": "low"}


def test_usage_is_in_this_apis_shape() -> None:
    assert response_of(content="x")["usage"] == {
        "input_tokens": 5,
        "input_tokens_details": {"cached_tokens": 2},
        "output_tokens": 3,
        "output_tokens_details": {"reasoning_tokens": 1},
        "total_tokens": 8,
    }


def test_reasoning_text_and_calls_are_items_in_this_order() -> None:
    items = response_of(content="I go.", reasoning_content="Hm.", tool_calls=[CALL, CUSTOM])["output"]
    kinds = [item["type"] for item in items]
    assert kinds == ["reasoning", "message", "function_call", "custom_tool_call"]
    assert items[0]["content"] == [{"type": "reasoning_text", "text": "Hm."}]
    assert [item.get("call_id") for item in items[2:]] == ["c1", "c2"]
    assert (items[2]["arguments"], items[3]["input"]) == ("{}", "ls")
    assert len({item["id"] for item in items}) == 4


def test_a_call_of_a_namespaces_tool_has_both_names() -> None:
    group = {"type": "namespace", "name": "agents", "tools": [{"type": "function", "name": "go"}]}
    body = ResponsesRequest.model_validate({"input": "x", "tools": [group]})
    function = {"name": "agents__go", "arguments": "{}"}
    inside, outside = response_of(body=body, tool_calls=[CALL | {"function": function}, CALL])["output"]
    assert (inside["namespace"], inside["name"]) == ("agents", "go")
    assert (outside.get("namespace"), outside["name"]) == (None, "go")


OWN: dict[str, Any] = {
    "shell": {"commands": ["ls", "pwd"], "timeout_ms": 9},
    "local_shell": {"command": ["ls"]},
    "apply_patch": {"type": "create_file", "path": "a.py", "diff": "+a"},
    "computer": {"actions": [{"type": "click", "button": "left", "x": 3, "y": 4}, {"type": "screenshot"}]},
    "computer_use_preview": {"type": "scroll", "x": 3, "y": 4, "scroll_x": 0, "scroll_y": 90},
}
CHECK = {"id": "sc_1", "code": "malicious_instructions"}
SCREENSHOT = "data:image/png;base64,AAAA"


def own(kind: str, arguments: str) -> Any:
    body = ResponsesRequest.model_validate({"input": "x", "tools": [{"type": kind}]})
    called = {"name": kind, "arguments": arguments}
    call = {"id": "c1", "type": "function", "function": called}
    [item] = response_of(body=body, tool_calls=[call])["output"]
    return item


@pytest.mark.parametrize("kind", OWN)
def test_a_call_of_openais_own_tool_is_the_item_that_its_sdk_reads_and_sends_back(kind: str) -> None:
    item = own(kind, json.dumps(OWN[kind]))
    read = TypeAdapter[Any](ResponseOutputItem).validate_python(item)
    said = read.model_dump(exclude_none=True)
    field = next(name for name in ("operation", "action", "actions") if name in said)
    given = OWN[kind] if kind == "computer" else {field: OWN[kind]}
    assert given[field] == said[field] or given[field].items() <= said[field].items()
    output: Any = {"shell": [{"stdout": "a", "stderr": "", "outcome": {"type": "timeout"}}]}
    result = {"type": f"{item['type']}_output", "output": output.get(kind, "done")}
    if "computer" in kind:
        shown = {"type": "computer_screenshot", "image_url": SCREENSHOT}
        result |= {"output": shown, "acknowledged_safety_checks": [CHECK]}
    result |= {"id": "c1"} if kind == "local_shell" else {"call_id": "c1"}
    body = ResponsesRequest.model_validate({"input": [item, result], "tools": [{"type": kind}]})
    called, told, *seen = to_chat_request(body).model_dump(exclude_none=True)["messages"]
    [call] = called["tool_calls"]
    assert (call["id"], call["function"]["name"]) == ("c1", kind)
    assert OWN[kind].items() <= json.loads(call["function"]["arguments"]).items()
    text = json.dumps(output[kind]) if kind in output else "done"
    if "computer" in kind:
        text = f"screenshot\nacknowledged: {json.dumps(CHECK)}"
        assert seen == [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": SCREENSHOT}}]}]
    assert told == {"role": "tool", "tool_call_id": "c1", "content": text}


def test_a_call_of_openais_own_tool_whose_arguments_are_no_object_stays_a_functions() -> None:
    for kind, arguments in (("shell", '{"comm'), ("computer", '{"action": 1}')):
        item = own(kind, arguments)
        assert (item["type"], item["name"], item["arguments"]) == ("function_call", kind, arguments)


def test_calls_alone_have_no_message_and_a_refusal_is_one() -> None:
    assert [item["type"] for item in response_of(tool_calls=[CALL])["output"]] == ["function_call"]
    [item] = response_of(refusal="No.")["output"]
    assert item["content"] == [{"type": "refusal", "refusal": "No."}]


@pytest.mark.parametrize(
    ("finish_reason", "reason"), [("length", "max_output_tokens"), ("content_filter", "content_filter")]
)
def test_a_reply_that_was_cut_off_is_incomplete(finish_reason: str, reason: str) -> None:
    response = response_of(finish_reason, content="I g")
    assert (response["status"], response["incomplete_details"]) == ("incomplete", {"reason": reason})
    assert response["output"][0]["status"] == "incomplete"
    assert response["completed_at"] is None
    assert list(closing_events(response))[-1]["type"] == "response.incomplete"


@pytest.mark.parametrize("reasoning", [None, {"summary": "auto"}])
def test_events_rebuild_every_item(reasoning: Any) -> None:
    body = ResponsesRequest.model_validate({"input": "x", "reasoning": reasoning})
    response = response_of(body=body, content="I go on.", reasoning_content="Hm.", tool_calls=[CALL, CUSTOM])
    events = list(closing_events(response))
    for index, item in enumerate(response["output"]):
        own = [event for event in events if event.get("output_index") == index]
        assert own[0]["type"] == "response.output_item.added"
        assert not own[0]["item"].get("summary")
        assert own[0]["item"] | {"status": item.get("status")} != item
        assert own[-1] == {"type": "response.output_item.done", "output_index": index, "item": item}
        assert {event["item_id"] for event in own[1:-1]} == {item["id"]}
        said = "".join(event.get("delta", "") for event in own)
        whole = item.get("arguments", item.get("input"))
        assert said == ((item.get("content") or item["summary"])[0]["text"] if whole is None else whole)
    assert events[-1] == {"type": "response.completed", "response": response}


def test_a_refusal_is_streamed_as_one() -> None:
    kinds = [event["type"] for event in closing_events(response_of(refusal="No."))]
    assert "response.refusal.delta" in kinds
    assert "response.refusal.done" in kinds


def test_a_text_with_logprobs_is_one_delta() -> None:
    tokens = [{"token": "I", "logprob": -0.5, "bytes": [73], "top_logprobs": []}]
    response = response_of(content="I go.", logprobs={"content": tokens})
    assert response["output"][0]["content"][0]["logprobs"] == tokens
    deltas = [event for event in closing_events(response) if "delta" in event]
    assert [(event["delta"], event["logprobs"]) for event in deltas] == [("I go.", tokens)]


def test_a_failure_is_an_error_and_a_failed_response() -> None:
    response = opened(BODY, model="demo", temperature=1.0)
    assert [event["response"]["status"] for event in opening_events(response)] == ["in_progress"] * 2
    detail = {"code": "upstream_timeout", "message": "silent", "param": None, "type": "x"}
    error, end = failure_events(failed(response, {"error": detail}), {"error": detail})
    assert error == {"type": "error", "code": "upstream_timeout", "message": "silent", "param": None}
    assert (end["type"], end["response"]["status"]) == ("response.failed", "failed")
    assert end["response"]["error"] == {"code": "upstream_timeout", "message": "silent"}


def test_a_writer_that_waits_opens_the_response_once_and_then_beats() -> None:
    writer = ResponseWriter(opened(BODY, model="demo", temperature=1.0))
    first, second = writer.waiting()
    assert first.startswith(b"event: response.created\ndata: ")
    assert second.startswith(b"event: response.in_progress\ndata: ")
    assert list(writer.waiting()) == [HEARTBEAT]
    [third, *_, last] = writer.finished(response_of(content="I go."))
    assert third.startswith(b"event: response.output_item.added\n")
    assert b'"sequence_number": 2' in third
    assert last.startswith(b"event: response.completed\n")


def test_a_call_in_openais_deprecated_form_is_an_item() -> None:
    called = {"name": "go", "arguments": '{"to": "desk"}'}
    [item] = response_of("function_call", function_call=called)["output"]
    assert (item["type"], item["name"]) == ("function_call", "go")
    assert item["arguments"] == called["arguments"]
    assert item["call_id"].startswith("call_")


def test_acknowledged_safety_checks_that_are_no_list_are_refused() -> None:
    shown = {"type": "computer_screenshot", "image_url": SCREENSHOT}
    result = {"type": "computer_call_output", "call_id": "c1", "output": shown, "acknowledged_safety_checks": 5}
    item = own("computer", json.dumps(OWN["computer"]))
    body = ResponsesRequest.model_validate({"input": [item, result], "tools": [{"type": "computer"}]})
    with pytest.raises(MalformedHistoryError, match="acknowledged_safety_checks"):
        to_chat_request(body)

"""Answers of OpenAI's Responses API, from and to chat completions, whole and streamed. Pure."""

import json
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any, Final

from qguide.qnet.chat_messages import PART_END
from qguide.qnet.dialects.anthropic_answers import input_of
from qguide.qnet.dialects.shapes import (
    LENGTH,
    Count,
    IgnoringExtras,
    Json,
    Said,
    Tokens,
    calls_in,
    pieces_of,
    read_as,
    thoughts_in,
)
from qguide.qnet.errors import MalformedHistoryError

_KINDS: Final = {"function_call": "function", "custom_tool_call": "custom"}
_ENDS: Final = ("response.completed", "response.incomplete", "response.failed")
INCOMPLETE: Final = {LENGTH: "max_output_tokens", "content_filter": "content_filter"}
"""Reasons for an incomplete response by a chat's finish reason."""
_FINISH_REASONS: Final = {reason: said for said, reason in INCOMPLETE.items()}

Names = Mapping[str, Json]
"""Name and namespace of tools by their names in a chat; of OpenAI's own ones the type."""

OWN_CALLS: Final[Mapping[str, tuple[str, str]]] = {
    "shell": ("shell_call", "action"),
    "local_shell": ("local_shell_call", "action"),
    "apply_patch": ("apply_patch_call", "operation"),
    "computer": ("computer_call", "actions"),
    "computer_use_preview": ("computer_call", "action"),
}
"""Types of OpenAI's tools that the caller runs, which are functions of that name in a chat; the
types of their calls, and the field of these that has the arguments."""
_OWN_CALLS: Final = frozenset(item for item, _ in OWN_CALLS.values())
_OWN_RESULTS: Final = frozenset(f"{item}_output" for item in _OWN_CALLS)
OWN_ITEMS: Final = _OWN_CALLS | _OWN_RESULTS
"""Types of their calls and results."""


class _Part(IgnoringExtras):
    type: str = ""
    text: Said = ""
    refusal: Said = ""
    logprobs: Tokens = None


class _Item(IgnoringExtras):
    type: str
    content: list[_Part] | None = None
    summary: list[_Part] | None = None
    call_id: str = ""
    name: str = ""
    arguments: str = ""
    input: str = ""
    action: dict[str, Any] | None = None
    operation: dict[str, Any] | None = None
    actions: list[dict[str, Any]] | None = None


class _Details(IgnoringExtras):
    cached_tokens: Count = 0
    reasoning_tokens: Count = 0


class _Usage(IgnoringExtras):
    input_tokens: Count = 0
    output_tokens: Count = 0
    input_tokens_details: _Details | None = None
    output_tokens_details: _Details | None = None


class _Counted(IgnoringExtras):
    usage: _Usage | None = None


class _Incomplete(IgnoringExtras):
    reason: str = ""


class _Answer(IgnoringExtras):
    output: list[_Item]
    status: str = "completed"
    incomplete_details: _Incomplete | None = None


def completion_of(response: Json) -> Json:
    """The chat completion that says the same; without choices if it is no response, or failed."""
    counted = read_as(_Counted, response)
    completion: Json = {"usage": _chat_usage(counted.usage)} if counted and counted.usage else {}
    read = read_as(_Answer, response)
    if read is None or read.status not in ("completed", "incomplete"):
        return completion
    reply = _reply(read.output)
    cut = read.incomplete_details.reason if read.incomplete_details else ""
    ended = "tool_calls" if "tool_calls" in reply else "stop"
    choice: Json = {"message": reply, "finish_reason": _FINISH_REASONS.get(cut, ended)}
    if tokens := [token for part in _parts(read.output) for token in part.logprobs or ()]:
        choice["logprobs"] = {"content": tokens}
    return completion | {"choices": [choice]}


def _chat_usage(usage: _Usage) -> Json:
    given, made = usage.input_tokens_details, usage.output_tokens_details
    return {
        "prompt_tokens": usage.input_tokens,
        "completion_tokens": usage.output_tokens,
        "prompt_tokens_details": {"cached_tokens": given.cached_tokens if given else 0},
        "completion_tokens_details": {"reasoning_tokens": made.reasoning_tokens if made else 0},
    }


def _reply(items: Sequence[_Item]) -> Json:
    parts = list(_parts(items))
    reply: Json = {"content": "".join(part.text for part in parts)}
    if calls := [_chat_call(item) for item in items if item.type in (*_KINDS, *_OWN_CALLS)]:
        reply["tool_calls"] = calls
    if refusal := "".join(part.refusal for part in parts):
        reply["refusal"] = refusal
    thoughts = [part for item in items if item.type == "reasoning" for part in item.content or item.summary or ()]
    if thought := PART_END.join(part.text for part in thoughts if part.text):
        reply["reasoning_content"] = thought
    return reply


def _parts(items: Sequence[_Item]) -> Iterator[_Part]:
    for item in items:
        if item.type == "message":
            yield from item.content or ()


def own_call(kind: str, said: Mapping[str, Any]) -> Json | None:
    """Name and arguments in a chat of a call of one of OpenAI's tools; None for another item."""
    found = [(tool, field) for tool, (item, field) in OWN_CALLS.items() if item == kind]
    if not found:
        return None
    tool, field = next((one for one in found if said.get(one[1])), found[0])
    given = said.get(field) or {}
    arguments = {field: given} if isinstance(given, list) else given
    return {"name": tool, "arguments": json.dumps(arguments, ensure_ascii=False)}


def own_result(kind: str, said: Mapping[str, Any]) -> str | list[Json] | None:
    """Text of the result of one of OpenAI's tools, or its parts; None for another item.

    That of a shell is a list of what each command wrote; that of a computer is a screenshot, and
    the safety checks that the caller acknowledges with it.
    """
    if kind not in _OWN_RESULTS:
        return None
    output = said.get("output") or said.get("status") or ""
    if isinstance(output, dict) and output.get("type") == "computer_screenshot":
        checks = said.get("acknowledged_safety_checks") or []
        if not isinstance(checks, list):
            raise MalformedHistoryError(f"acknowledged_safety_checks of a {kind} is no list; send the checks as one")
        acknowledged = (f"acknowledged: {json.dumps(one)}" for one in checks)
        text = {"type": "input_text", "text": "\n".join(("screenshot", *acknowledged))}
        return [text, output | {"type": "input_image"}]
    return output if isinstance(output, str) else json.dumps(output, ensure_ascii=False)


def _chat_call(item: _Item) -> Json:
    if function := own_call(item.type, dict(item)):
        return {"id": item.call_id, "type": "function", "function": function}
    kind = _KINDS[item.type]
    said = {"input": item.input} if kind == "custom" else {"arguments": item.arguments}
    return {"id": item.call_id, "type": kind, kind: {"name": item.name} | said}


def output_of(choice: Json, names: Names, status: str, *, summarized: bool = False) -> list[Json]:
    """Items of a chat's choice: its reasoning (all of it as the summary if one is wanted), its text, its tool calls."""
    message = choice["message"]
    thoughts = thoughts_in(message)
    items = [_reasoning(thoughts[1], summarized=summarized)] if thoughts else []
    calls = calls_in(message)
    content = _content(message, choice.get("logprobs"))
    if content or not calls:
        item = {"type": "message", "status": status, "role": "assistant", "content": content}
        items.append({"id": _new_id("msg")} | item)
    return items + [_call(call, names, status) for call in calls]


def _reasoning(text: str, *, summarized: bool) -> Json:
    item: Json = {"id": _new_id("rs"), "type": "reasoning"}
    if summarized:
        return item | {"summary": [{"type": "summary_text", "text": text}]}
    return item | {"summary": [], "content": [{"type": "reasoning_text", "text": text}]}


def _content(message: Json, logprobs: Any) -> list[Json]:
    if message.get("refusal"):
        return [{"type": "refusal", "refusal": message["refusal"]}]
    if not message.get("content"):
        return []
    tokens = (logprobs or {}).get("content") or []
    text = {"type": "output_text", "text": message["content"]}
    return [text | {"annotations": [], "logprobs": tokens}]


def _call(call: Json, names: Names, status: str) -> Json:
    if "custom" in call:
        called, field = call["custom"], "input"
        own = {"id": _new_id("ctc"), "type": "custom_tool_call"}
    else:
        called, field = call["function"], "arguments"
        own = {"id": _new_id("fc"), "type": "function_call"}
    name = names.get(called["name"], {"name": called["name"]})
    if kind := name.get("type"):
        given, is_object = input_of(called[field])
        if is_object and (item := _own_item(kind, given)):
            return item | {"status": status, "call_id": call["id"]}
        name = {"name": kind}  # what its caller cannot read as such
    return own | {"status": status, "call_id": call["id"], field: called[field]} | name


def _own_item(kind: str, given: Json) -> Json | None:
    """The call of one of OpenAI's tools; None if the arguments lack what it is made of."""
    item, field = OWN_CALLS[kind]
    needed = {"type": "exec", "env": {}} if kind == "local_shell" else {}
    said = given.get(field) if field == "actions" else needed | given
    own: Json = {"pending_safety_checks": []} if item == "computer_call" else {}
    return {"id": _new_id(item), "type": item, field: said} | own if said else None


def usage_of(usage: Json) -> Json:
    """Usage of a chat completion, as a response states it."""
    details = usage.get("completion_tokens_details") or {}
    return {
        "input_tokens": usage["prompt_tokens"],
        "input_tokens_details": {"cached_tokens": usage["prompt_tokens_details"]["cached_tokens"]},
        "output_tokens": usage["completion_tokens"],
        "output_tokens_details": {"reasoning_tokens": details.get("reasoning_tokens", 0)},
        "total_tokens": usage["total_tokens"],
    }


def _new_id(prefix: str) -> str:
    return f"{prefix}_{uuid.uuid4().hex}"


def opening_events(response: Json) -> Iterator[Json]:
    """The first events; they need no output."""
    yield {"type": "response.created", "response": response}
    if response["status"] == "queued":
        yield {"type": "response.queued", "response": response}
    yield {"type": "response.in_progress", "response": response | {"status": "in_progress"}}


def closing_events(response: Json) -> Iterator[Json]:
    """The output of a finished response item by item, and its end."""
    for index, item in enumerate(response["output"]):
        yield from _item_events(index, item)
    yield {"type": f"response.{response['status']}", "response": response}


def failure_events(response: Json, error: Json) -> Iterator[Json]:
    """The end of a response that failed."""
    detail = error["error"]
    yield {"type": "error"} | {name: detail[name] for name in ("code", "message", "param")}
    yield {"type": "response.failed", "response": response}


def _item_events(index: int, item: Json) -> Iterator[Json]:
    at = {"output_index": index}
    place = at | {"item_id": item.get("id", "")}
    kind = item["type"]
    begun = item | {"status": "in_progress"}
    if kind == "function_call":
        inside = _text_events("function_call_arguments", "arguments", item.get("arguments"), place)
        begun["arguments"] = ""
    elif kind == "custom_tool_call":
        inside = _text_events("custom_tool_call_input", "input", item.get("input"), place)
        begun["input"] = ""
    else:  # an upstream's own item of another type may have no content
        parts = enumerate(item.get("content") or ())
        inside = (e for k, part in parts for e in _part_events(part, place | {"content_index": k}))
        summary = _summary_events(item.get("summary") or (), place) if kind == "reasoning" else ()
        inside = chain(summary, inside)
        begun |= {name: [] for name in ("summary", "content") if name in item}
    yield {"type": "response.output_item.added", "item": begun} | at
    yield from inside
    yield {"type": "response.output_item.done", "item": item} | at


def _summary_events(summary: Iterable[Json], place: Json) -> Iterator[Json]:
    for index, part in enumerate(summary):
        here = place | {"summary_index": index}
        yield {"type": "response.reasoning_summary_part.added", "part": part | {"text": ""}} | here
        yield from _text_events("reasoning_summary_text", "text", part.get("text"), here)
        yield {"type": "response.reasoning_summary_part.done", "part": part} | here


def _text_events(name: str, field: str, text: str | None, place: Json) -> Iterator[Json]:
    """A text in one piece, and as a whole; an upstream's own item may have none."""
    if text:
        yield {"type": f"response.{name}.delta", "delta": text} | place
    yield {"type": f"response.{name}.done", field: text or ""} | place


def _part_events(part: Json, place: Json) -> Iterator[Json]:
    kind = part.get("type") or "output_text"
    field = "refusal" if kind == "refusal" else "text"
    text = part.get(field) or ""
    begun = part | {field: ""} | ({"logprobs": []} if "logprobs" in part else {})
    yield {"type": "response.content_part.added", "part": begun} | place
    if kind == "output_text":
        yield from _output_text_events(text, part.get("logprobs") or [], place)
    else:
        yield from _text_events(kind, field, text, place)
    yield {"type": "response.content_part.done", "part": part} | place


def _output_text_events(text: str, logprobs: list[Json], place: Json) -> Iterator[Json]:
    # Tokens may end inside a word, so a text with log-probabilities is not split.
    for piece in [text] if logprobs else pieces_of(text):
        delta = {"type": "response.output_text.delta", "delta": piece, "logprobs": logprobs}
        yield delta | place
    yield {"type": "response.output_text.done", "text": text, "logprobs": logprobs} | place


def assembled_response(events: Sequence[Mapping[str, Any]]) -> Json | None:
    """The response that a stream's last event has whole; None if it did not come."""
    for event in reversed(events):
        response = event.get("response")
        if event.get("type") in _ENDS and isinstance(response, dict):
            return response
    return None

"""Answers of Anthropic's Messages API, from and to chat completions, whole and streamed. Pure."""

import json
import math
import uuid
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, Final

from pydantic import Field

from qguide.qnet.body_limits import MOST_LEVELS, exceeds_max_depth
from qguide.qnet.chat_messages import Shape, json_object, reply_text
from qguide.qnet.dialects.anthropic_requests import INVALID_JSON, SIGNATURE, THINKING_BLOCKS, arguments_of
from qguide.qnet.dialects.shapes import (
    LENGTH,
    Count,
    IgnoringExtras,
    Json,
    PiecedTexts,
    Said,
    calls_in,
    chat_name,
    pieces_of,
    read_as,
    thoughts_in,
)

_FINISH_REASONS: Final = {
    "end_turn": "stop",
    "stop_sequence": "stop",
    "max_tokens": LENGTH,
    "tool_use": "tool_calls",
    "refusal": "content_filter",
}
_STOP_REASONS: Final = {
    LENGTH: "max_tokens",
    "tool_calls": "tool_use",
    "function_call": "tool_use",
    "content_filter": "refusal",
}
_LEVELS_AROUND: Final = 5  # lists and objects of a request around the input of a tool_use block
_TEXTS: Final = ("text", "thinking", "signature")
"""Fields of a block that come in pieces, each in a delta of a type that ends in `_delta`."""
_LISTS: Final = {"citations_delta": ("citation", "citations")}


class _Block(Shape):
    type: str
    text: Said = ""
    thinking: Said = ""
    signature: Said = ""
    id: str = ""
    name: str = ""
    toolset_name: Said = ""
    input: dict[str, Any] = Field(default_factory=dict)


class _Usage(IgnoringExtras):
    input_tokens: Count = 0
    output_tokens: Count = 0
    cache_read_input_tokens: Count = 0
    cache_creation_input_tokens: Count = 0


class _Counted(IgnoringExtras):
    usage: _Usage | None = None


class _Answer(IgnoringExtras):
    content: list[_Block]
    stop_reason: str | None = None
    stop_sequence: str | None = None


def completion_of(message: Json) -> Json:
    """The chat completion that says the same; without choices if this is no message."""
    counted = read_as(_Counted, message)
    completion: Json = {"usage": _chat_usage(counted.usage)} if counted and counted.usage else {}
    read = read_as(_Answer, message)
    if read is None:
        return completion
    reason = _FINISH_REASONS.get(read.stop_reason or "", "stop")
    choice = {"message": _reply(read.content, message["content"]), "finish_reason": reason}
    if read.stop_sequence:
        choice["stop_reason"] = read.stop_sequence
    return completion | {"choices": [choice]}


def _chat_usage(usage: _Usage) -> Json:
    """Anthropic counts cached tokens apart from the others."""
    cached, written = usage.cache_read_input_tokens, usage.cache_creation_input_tokens
    return {
        "prompt_tokens": usage.input_tokens + cached + written,
        "completion_tokens": usage.output_tokens,
        "prompt_tokens_details": {"cached_tokens": cached, "cache_write_tokens": written},
    }


def _reply(blocks: Sequence[_Block], said: Sequence[Json]) -> Json:
    reply: Json = {"content": "".join(block.text for block in blocks if block.type == "text")}
    calls = [_call(block) for block in blocks if block.type == "tool_use"]
    if calls:
        reply["tool_calls"] = calls
    if thoughts := [block for block in said if "thinking" in str(block.get("type"))]:
        reply[THINKING_BLOCKS] = thoughts
        reply["reasoning_content"] = "".join(str(one.get("thinking") or "") for one in thoughts)
    return reply


def _call(block: _Block) -> Json:
    name = chat_name(block.name, block.toolset_name)
    function = {"name": name, "arguments": arguments_of(block.input)}
    return {"id": block.id, "type": "function", "function": function}


def message_of(
    completion: Json,
    *,
    thinks: bool,
    stop_sequences: Sequence[str],
    native: Mapping[str, Any] | None = None,
    toolsets: Collection[str] = (),
) -> tuple[Json, list[str]]:
    """The message with what a completion's first choice says, or the `native` one's blocks, and warnings."""
    choice, warnings = completion["choices"][0], list[str]()
    if native is not None:
        blocks = native["content"]
        stop_reason, stop_sequence = native.get("stop_reason"), native.get("stop_sequence")
    else:
        blocks, warnings = _blocks(choice["message"], toolsets, thinks=thinks)
        stop_reason, stop_sequence = _stop_reason(choice, stop_sequences)
    return {
        "id": f"msg_{uuid.uuid4().hex}",
        "type": "message",
        "role": "assistant",
        "model": completion["model"],
        "content": blocks,
        "stop_reason": stop_reason,
        "stop_sequence": stop_sequence,
        "usage": _usage(completion["usage"]),
    }, warnings


def _blocks(message: Json, toolsets: Collection[str], *, thinks: bool) -> tuple[list[Json], list[str]]:
    """Content of a reply, and warnings of calls whose arguments are not a JSON object."""
    blocks: list[Json] = []
    if thinks and (thoughts := thoughts_in(message)):
        field, said = thoughts
        blocks.append({"type": "thinking", "thinking": said, "signature": SIGNATURE + field})
    if text := reply_text(message):
        blocks.append({"type": "text", "text": text})
    warnings = []
    for call in calls_in(message):
        name, given, warning = read_call(call, "input")
        warnings += warning
        toolset, _, member = name.partition("__")
        own = {"name": name}
        if member and toolset in toolsets:
            own = {"name": member, "toolset_name": toolset}
        blocks.append({"type": "tool_use", "id": call["id"], **own, "input": given})
    return blocks, warnings


def read_call(call: Json, field: str) -> tuple[str, Json, list[str]]:
    """Name and arguments of a chat's call, and a warning if these, the dialect's `field`, are not a JSON object."""
    called = call[call["type"]]
    given, is_object = input_of(called["input"] if call["type"] == "custom" else called["arguments"])
    warning = (
        f"the arguments of the call of {called['name']!r} are not a JSON object; its {field} "
        f"{'has' if field == 'input' else 'have'} them as the text {INVALID_JSON}"
    )
    return called["name"], given, [] if is_object else [warning]


def _stop_reason(choice: Json, stop_sequences: Sequence[str]) -> tuple[str, str | None]:
    """The reason and the stop sequence, which only some upstreams (vLLM, SGLang) name."""
    finish_reason = choice["finish_reason"]
    if calls_in(choice["message"]) and finish_reason != LENGTH:
        return "tool_use", None  # an upstream that was made to call a tool says "stop"
    matched = choice.get("stop_reason")
    if isinstance(matched, str) and matched in stop_sequences:
        return "stop_sequence", matched
    return _STOP_REASONS.get(finish_reason, "end_turn"), None


def _usage(usage: Json) -> Json:
    """Tokens of all candidates; Anthropic counts cached tokens apart from the input's."""
    details = usage["prompt_tokens_details"]
    cached, written = details["cached_tokens"], details.get("cache_write_tokens", 0)
    reasoning = usage.get("completion_tokens_details", {}).get("reasoning_tokens")
    thoughts = {"output_tokens_details": {"thinking_tokens": reasoning}} if reasoning else {}
    return {
        "input_tokens": usage["prompt_tokens"] - cached - written,
        "cache_creation_input_tokens": written,
        "cache_read_input_tokens": cached,
        "output_tokens": usage["completion_tokens"],
        **thoughts,
    }


def input_of(arguments: str) -> tuple[dict[str, Any], bool]:
    """The input of a tool_use block, and whether the arguments were a JSON object.

    A model may write anything, above all if `max_tokens` cuts it off; the text is then the value
    of `INVALID_JSON`, so that the caller sees it and can send it back. So it is if Python reads
    what an answer in JSON cannot carry, or what is nested too deeply to be sent back.
    """
    if not arguments.strip():
        return {}, True
    try:
        read = json.loads(arguments, parse_constant=_finite, parse_float=_finite)
    except (ValueError, RecursionError):
        read = None
    if not isinstance(read, dict) or exceeds_max_depth(read, MOST_LEVELS - _LEVELS_AROUND):
        return {INVALID_JSON: arguments}, False
    try:
        json.dumps(read, ensure_ascii=False).encode()
    except UnicodeEncodeError:  # a lone surrogate, which JSON can express and UTF-8 cannot
        return {INVALID_JSON: arguments}, False
    return read, True


def _finite(number: str) -> float:
    if not math.isfinite(read := float(number)):
        raise ValueError(f"{number} is no JSON number")
    return read


def events_of(message: Json) -> Iterator[Json]:
    """Split a finished message into the events of a stream; its `qguide` is in the first, where the SDK keeps it."""
    usage = message["usage"]
    head = message | {"content": [], "stop_reason": None, "stop_sequence": None, "usage": usage | {"output_tokens": 0}}
    yield {"type": "message_start", "message": head}
    for index, block in enumerate(message["content"]):
        opening, deltas = _parts_of(block)
        yield {"type": "content_block_start", "index": index, "content_block": opening}
        for delta in deltas:
            yield {"type": "content_block_delta", "index": index, "delta": delta}
        yield {"type": "content_block_stop", "index": index}
    end = {name: message[name] for name in ("stop_reason", "stop_sequence")}
    yield {"type": "message_delta", "delta": end, "usage": usage}
    yield {"type": "message_stop"}


def _parts_of(block: Json) -> tuple[Json, list[dict[str, Any]]]:
    """A block without its content, and its content in pieces."""
    match block["type"]:
        case "text":
            deltas = [{"type": "text_delta", "text": piece} for piece in pieces_of(block.get("text") or "")]
            return block | {"text": ""}, deltas
        case "thinking":
            thoughts = pieces_of(block.get("thinking") or "")
            deltas = [{"type": "thinking_delta", "thinking": piece} for piece in thoughts]
            signed = {"type": "signature_delta", "signature": block.get("signature") or ""}
            return block | {"thinking": "", "signature": ""}, [*deltas, signed]
    if "input" not in block:  # an upstream's own block of another type
        return block, []
    filled = json.dumps(block["input"], ensure_ascii=False)
    return block | {"input": {}}, [{"type": "input_json_delta", "partial_json": filled}]


def assembled_message(events: Sequence[Mapping[str, Any]]) -> Json | None:
    """The message; None if its last event did not come."""
    message: Json | None = None
    blocks: dict[int, Json] = {}
    inputs: dict[int, Json] = {}
    texts = PiecedTexts()
    ended = False
    for event in events:
        index = event.get("index")
        match event.get("type"):
            case "message_start" if isinstance(event.get("message"), dict):
                message = dict(event["message"])
            case "content_block_start" if isinstance(event.get("content_block"), dict):
                blocks[index if isinstance(index, int) else len(blocks)] = {**event["content_block"]}
            case "content_block_delta" if isinstance(index, int) and index in blocks:
                delta = event.get("delta")
                if isinstance(delta, dict):
                    _extend(blocks[index], delta, inputs, index, texts)
            case "message_delta" if message is not None:
                _end(message, event)
            case "message_stop":
                ended = True
    if message is None or not ended:
        return None
    texts.join()
    for index, written in inputs.items():
        blocks[index]["input"] = _input(written["json"])
    return message | {"content": [blocks[index] for index in sorted(blocks)]}


def _extend(block: Json, delta: Mapping[str, Any], inputs: dict[int, Json], index: int, texts: PiecedTexts) -> None:
    kind = delta.get("type")
    for name in _TEXTS:
        if kind == f"{name}_delta" and isinstance(piece := delta.get(name), str):
            texts.add(block, name, piece)
    if kind == "input_json_delta" and isinstance(piece := delta.get("partial_json"), str):
        texts.add(inputs.setdefault(index, {}), "json", piece)
    if kind in _LISTS and _LISTS[kind][0] in delta:
        one, many = _LISTS[kind]
        known = block.get(many)
        block[many] = known = known if isinstance(known, list) else []
        known.append(delta[one])


def _end(message: Json, event: Mapping[str, Any]) -> None:
    """The reason why the message ended, and its usage, which has only what changed."""
    if isinstance(event.get("delta"), dict):
        message |= event["delta"]
    if isinstance(event.get("usage"), dict):
        earlier = message.get("usage")
        message["usage"] = (earlier if isinstance(earlier, dict) else {}) | {
            name: value for name, value in event["usage"].items() if value is not None
        }


def _input(written: str) -> Json:
    """Arguments as the model wrote them, where they are not a JSON object."""
    read = json_object(written) if written.strip() else {}
    return {INVALID_JSON: written} if read is None else read

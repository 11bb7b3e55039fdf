"""Requests of OpenAI's Responses API, from and to those of chat completions. Pure.

The models take whatever was recorded. The server's request body is a subclass of them that takes less.
"""

import uuid
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any, Final, Literal, TypeVar

from qguide.qnet.chat_messages import PART_END, Shape, text_of
from qguide.qnet.dialects.responses_answers import OWN_CALLS, OWN_ITEMS, own_call, own_result
from qguide.qnet.dialects.shapes import (
    ASKED,
    CHATS_ALONE,
    EFFORTLESS,
    Json,
    chat_name,
    image_address,
    passed_on,
    results_after_calls,
)
from qguide.qnet.errors import InvalidRequestError, MalformedHistoryError, UnsupportedParameterError
from qguide.qnet.turns import paced

_TEXTS: Final = ("input_text", "output_text", "text")
_OF_ANSWERS: Final = frozenset(("annotations", "logprobs"))
"""Fields of an answer's text that come back with it and that chat completions do not know."""
_CALLS: Final = {"function_call": ("function", "arguments"), "custom_tool_call": ("custom", "input")}
_CALL_OF: Final = {kind: (item, field) for item, (kind, field) in _CALLS.items()}
_OUTPUTS: Final = tuple(f"{item}_output" for item in _CALLS)
ITEM_TYPES: Final = frozenset(("message", "reasoning", *_CALLS, *_OUTPUTS, *OWN_ITEMS))
"""Types of the items that a chat can express."""
COMPACTIONS: Final = ("compaction", "compaction_summary")
"""Types of the item; Codex sends it back under the second as well."""
_OURS: Final = "qguide:"  # begins the content of our own items; only its own server can read another's
_BEFORE: Final = "Summary of the conversation so far, whose earlier turns were left out:\n\n"

Turn = Json
Value = TypeVar("Value")


class ItemPart(Shape):
    """A part of an item's content or output."""

    type: str
    text: str | None = None
    refusal: str | None = None


class InputItem(Shape):
    """One item of the input; which fields it needs depends on its type."""

    type: str | None = None
    role: Literal["user", "assistant", "system", "developer"] | None = None
    content: str | Sequence[ItemPart] | None = None
    call_id: str | None = None
    name: str | None = None
    namespace: str | None = None
    arguments: str | None = None
    input: str | None = None
    output: str | Sequence[ItemPart] | Sequence[Mapping[str, Any]] | Mapping[str, Any] | None = None


def to_turns(instructions: str | None, items: str | Sequence[InputItem]) -> list[Turn]:
    """The turns of a chat that say the same as the instructions and the input.

    What the policy said in one turn is several items: reasoning, a message, calls. Consecutive ones
    become one turn again, because a chat has the results right after the turn with the calls.
    """
    turns: list[Turn] = []
    if instructions:
        turns.append({"role": "system", "content": instructions})
    if isinstance(items, str):
        return [*turns, {"role": "user", "content": items}]
    said = (_turns_of(item, f"input[{index}]") for index, item in enumerate(paced(items)))
    turns += map(_joined, _by_turn(chain.from_iterable(said)))
    return list(results_after_calls(turns))


def _turns_of(item: InputItem, place: str) -> Iterator[Turn]:
    """The turn that an item is, or is a part of; none for what only another server can read."""
    kind = item.type or "message"
    if kind == "message":
        role = _needed(item.role, "role", kind, place)
        yield {"role": role, "content": _content(item.content, "content", kind, place)}
    elif kind in _CALLS:
        yield {"role": "assistant", "content": None, "tool_calls": [_call(item, kind, place)]}
    elif kind in _OUTPUTS:
        call_id = _needed(item.call_id, "call_id", kind, place)
        if isinstance(item.output, Mapping):
            raise MalformedHistoryError(f"{place}.output is an object; send a text or a list of parts")
        content = _content(item.output, "output", kind, place)
        yield {"role": "tool", "tool_call_id": call_id, "content": content}
    elif function := own_call(kind, item.model_extra or {}):
        call_id = _needed(item.call_id, "call_id", kind, place)
        call = {"id": call_id, "type": "function", "function": function}
        yield {"role": "assistant", "content": None, "tool_calls": [call]}
    elif (result := own_result(kind, item.model_dump(exclude_unset=True))) is not None:
        # A local shell's output has its call's id as its own.
        given = item.call_id or (item.model_extra or {}).get("id")
        call_id = _needed(given, "call_id", kind, place)
        content = (
            result
            if isinstance(result, str)
            else _content([ItemPart.model_validate(part) for part in result], "output", kind, place)
        )
        yield {"role": "tool", "tool_call_id": call_id, "content": content}
    elif kind == "reasoning":
        if thoughts := _thoughts(item):
            yield {"role": "assistant", "content": None, "reasoning_content": thoughts}
    elif kind in COMPACTIONS:
        if turn := compacted_turn(item.model_extra or {}):
            yield turn
    elif kind == "item_reference":
        raise UnsupportedParameterError(
            f"{place} refers to an item of an earlier response, but this server stores none; send "
            "the item itself (clients do so with store: false)",
            parameter="input",
        )
    else:
        raise UnsupportedParameterError(
            f"{place} has the type {kind[:40]!r}; this server takes message, reasoning, "
            f"compaction, calls of {', '.join(('function', 'custom', *OWN_CALLS))} and their "
            "results; leave it out",
            parameter="input",
        )


def compaction_of(summary: str) -> Json:
    """The item that stands for a summarised history."""
    content = _OURS + urlsafe_b64encode(summary.encode()).decode()
    return {"id": f"cmp_{uuid.uuid4().hex}", "type": COMPACTIONS[0], "encrypted_content": content}


def compacted_turn(item: Mapping[str, Any]) -> Json | None:
    """The turn of a chat that says the same as a compaction; None for another server's."""
    content = item.get("encrypted_content")
    if not isinstance(content, str) or not content.startswith(_OURS):
        return None
    try:
        summary = urlsafe_b64decode(content.removeprefix(_OURS)).decode()
    except ValueError:
        return None
    return {"role": "user", "content": _BEFORE + summary}


def _call(item: InputItem, kind: str, place: str) -> Turn:
    chat_kind, said = _CALLS[kind]
    name = _needed(item.name, "name", kind, place)
    arguments = _needed(item.arguments if kind == "function_call" else item.input, said, kind, place)
    call_id = _needed(item.call_id, "call_id", kind, place)
    called = {"name": chat_name(name, item.namespace), said: arguments}
    return {"id": call_id, "type": chat_kind, chat_kind: called}


def _thoughts(item: InputItem) -> str:
    """Text of a reasoning item; an encrypted one, and its summary, is for OpenAI alone."""
    if isinstance(item.content, str):
        return item.content
    said, more = [part.text for part in item.content or ()], item.model_extra or {}
    if item.content is None and not more.get("encrypted_content") and isinstance(more.get("summary"), list):
        said = [part.get("text") for part in more["summary"] if isinstance(part, dict)]
    return PART_END.join(text for text in said if isinstance(text, str) and text)


def _content(
    content: str | Sequence[ItemPart | Mapping[str, Any]] | None, name: str, kind: str, place: str
) -> str | list[Turn]:
    """Content of a chat turn; a single text is a string, which every upstream takes."""
    if content is None or isinstance(content, str):
        return _needed(content, name, kind, place)
    parts = [_part(part, f"{place}.{name}[{index}]") for index, part in enumerate(content)]
    if len(parts) == 1 and parts[0].keys() == {"type", "text"}:
        return str(parts[0]["text"])
    return parts or ""


def _part(part: ItemPart | Mapping[str, Any], place: str) -> Turn:
    if not isinstance(part, ItemPart):
        raise MalformedHistoryError(f"{place} has no type; send it")
    more = {name: value for name, value in (part.model_extra or {}).items() if value is not None}
    if part.type in _TEXTS:
        own = {name: value for name, value in more.items() if name not in _OF_ANSWERS}
        return {"type": "text", "text": _needed(part.text, "text", part.type, place)} | own
    if part.type == "refusal":
        refusal = _needed(part.refusal, "refusal", part.type, place)
        return {"type": "refusal", "refusal": refusal}
    if part.type == "input_image" and "image_url" in more:
        image = {"url": more.pop("image_url")}
        if "detail" in more:
            image["detail"] = more.pop("detail")
        return {"type": "image_url", "image_url": image} | more
    if part.type == "input_file" and "file_url" not in more:
        return {"type": "file", "file": more}
    if part.type == "input_audio":
        return {"type": part.type} | more
    raise UnsupportedParameterError(
        f"{place} is of type {part.type[:40]!r}, as it is no part of a chat; send input_text, "
        "input_image with image_url, or input_file with file_data",
        parameter="input",
    )


def _by_turn(said: Iterable[Turn]) -> Iterator[list[Turn]]:
    """Consecutive items together that the policy said in one turn, and each other one alone.

    Calls join what was said before them. Text and reasoning begin a turn, except where the calls
    before them still wait for their results, or where only reasoning was before.
    """
    together: list[Turn] = []
    calls = silent = False
    for item in said:
        goes_on = item["role"] == "assistant" and ("tool_calls" in item or calls or silent)
        if together and not (goes_on and together[0]["role"] == "assistant"):
            yield together
            together = []
        if not together:
            calls, silent = False, True
        together.append(item)
        calls = calls or "tool_calls" in item
        silent = silent and item["content"] is None
    if together:
        yield together


def _joined(together: Sequence[Turn]) -> Turn:
    """One turn of all items; each is read once, because a body may have very many."""
    if len(together) == 1:
        turn = together[0]
    else:
        turn = dict(together[0], content=_text_joined([item["content"] for item in together]))
        if calls := [call for item in together for call in item.get("tool_calls", ())]:
            turn["tool_calls"] = calls
        if thoughts := [item["reasoning_content"] for item in together if "reasoning_content" in item]:
            turn["reasoning_content"] = _text_joined(thoughts)
    # Reasoning alone gets an empty text: only beside calls may a chat have none.
    return turn if turn["content"] is not None or "tool_calls" in turn else turn | {"content": ""}


def _text_joined(contents: Sequence[Any]) -> Any:
    """Texts as one, or parts if any content is a list of them; None if there is none."""
    given = [content for content in contents if content is not None]
    if all(isinstance(content, str) for content in given):
        return PART_END.join(given) if given else None
    return [part for content in given for part in _parts(content)]


def _parts(content: Any) -> list[Turn]:
    return [{"type": "text", "text": content}] if isinstance(content, str) else content


def _needed(value: Value | None, name: str, kind: str, place: str) -> Value:
    if value is None:
        raise MalformedHistoryError(f"{place} ({kind[:40]}) has no {name}; send it")
    return value


_OWN: Final = ("model", "messages", "temperature", "max_tokens", "max_completion_tokens")
_WITHOUT_EFFECT: Final = frozenset(("n", "prediction", "seed", "stop", "store", "stream_options"))
_NOT_STRICT: Final = {"function": {"strict": False}}
"""Default of a chat's tools; a function of this API is strict by default."""
_LOGPROBS: Final = "message.output_text.logprobs"


def request_of(chat: Json, native: Mapping[str, Any] | None = None) -> Json:
    """The request for the same as a chat completion's, with a `native` input as it came; the answer is not stored."""
    parameters = {name: value for name, value in chat.items() if name not in _OWN}
    longest = chat.get("max_completion_tokens") or chat.get("max_tokens")
    own = {"temperature": chat.get("temperature"), "max_output_tokens": longest}
    body = {"input": _input(chat["messages"]), **_parameters(parameters)} if native is None else native
    given = {name: value for name, value in own.items() if value is not None}
    return {**body, **given, "model": chat["model"], "store": False}


def _input(rows: Sequence[Mapping[str, Any]]) -> list[Json]:
    kinds: dict[str, str] = {}
    return [item for row in rows for item in _items(row, kinds)]


def _items(row: Mapping[str, Any], kinds: dict[str, str]) -> Iterator[Json]:
    """The items of a turn; the kinds of its calls are noted by their ids, for the results."""
    role = row["role"]
    if role in ("tool", "function"):
        call_id = row.get("tool_call_id") or ""
        item, _ = _CALL_OF[kinds.get(call_id, "function")]
        yield {"type": f"{item}_output", "call_id": call_id, "output": _output(row.get("content"))}
        return
    content = row.get("content") or row.get("refusal")
    if role == "assistant":
        if text := text_of(content):
            yield {"role": role, "content": text}
    else:
        yield {"role": role, "content": _chat_content(content or "")}
    for call in row.get("tool_calls") or ():
        kind = call.get("type") or "function"
        item, field = _CALL_OF[kind]
        kinds[call["id"]] = kind
        said = call[kind]
        yield {"type": item, "call_id": call["id"], "name": said["name"], field: said[field]}


def _output(content: str | Sequence[Json] | None) -> str | list[Json]:
    """A call's result: a text where it is nothing else, which every upstream takes."""
    if isinstance(content, str | None) or all(part.get("type") == "text" for part in content):
        return text_of(content)
    return _chat_content(content)


def _chat_content(content: str | Sequence[Json]) -> str | list[Json]:
    return content if isinstance(content, str) else [_chat_part(part) for part in content]


def _chat_part(part: Json) -> Json:
    match part:
        case {"type": "text"}:
            return {"type": "input_text", "text": part.get("text") or ""}
        case {"type": "image_url", "image_url": image}:
            more = image if isinstance(image, Mapping) else {}
            own = {"type": "input_image", "image_url": image_address(part)}
            return {name: value for name, value in more.items() if name != "url"} | own
        case {"type": "file", "file": dict(file)}:
            return {"type": "input_file", **file}
        case {"type": "input_audio"}:
            return part
    raise InvalidRequestError(
        f"a message has a part of type {str(part.get('type'))[:40]!r}, which an upstream of the "
        "dialect 'responses' cannot be sent; send text, image_url or file"
    )


def _parameters(parameters: Mapping[str, object]) -> Json:
    given = passed_on(parameters, "responses", without_effect=_WITHOUT_EFFECT, unknown=CHATS_ALONE)
    said: Json = {}
    effort, asked = given.pop("reasoning_effort", None), given.pop("reasoning", None) or {}
    if effort not in EFFORTLESS:
        asked = ASKED["reasoning"] | asked
    if reasoning := asked | ({"effort": effort} if effort else {}):
        said["reasoning"] = reasoning
    if given.pop("logprobs", None):
        said["include"] = [_LOGPROBS]
    form, verbosity = given.pop("response_format", None), given.pop("verbosity", None)
    text = {"format": _flat(form)} if form else {}
    if text or verbosity:
        said["text"] = text | ({"verbosity": verbosity} if verbosity else {})
    if tools := given.pop("tools", None):
        flat = [_flat(tool) for tool in tools]
        said["tools"] = [_NOT_STRICT.get(tool["type"], {}) | tool for tool in flat]
    choice = given.pop("tool_choice", None)
    if choice is not None:
        said["tool_choice"] = _flat(choice) if isinstance(choice, Mapping) else choice
    return given | said


def _flat(nested: Mapping[str, Any]) -> Json:
    """A tool, a choice or a format; chat completions nest its fields below its type."""
    kind = str(nested.get("type", "function"))
    given = nested.get(kind)
    inner = dict(given) if isinstance(given, Mapping) else {}
    if isinstance(allowed := inner.get("tools"), list):
        inner["tools"] = [_flat(tool) for tool in allowed if isinstance(tool, Mapping)]
    return {"type": kind, **inner}

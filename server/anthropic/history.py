"""Translation of Anthropic's content blocks to the messages of a chat completion. Pure.

A tool's results become messages of their own, before the rest of the user's message, because a
chat completion has them so. Thoughts go back to an upstream only if it was an upstream of this
server that gave them, which their signature says.
"""

import json
import math
from collections.abc import Iterator, Sequence
from typing import Any, Final, TypeVar

from qnet.errors import MalformedHistoryError
from qnet.openai_messages import PART_END
from qnet.support.json_depth import MOST_LEVELS, exceeds_max_depth
from server.anthropic.schemas import Block, Part, Source, Turn
from server.bodies.surrogates import lone_surrogate_in
from server.streaming.events import Json

INVALID_JSON: Final = "INVALID_JSON"
"""The only name in the input of a tool_use block whose arguments are not a JSON object."""
THOUGHTS: Final = ("reasoning_content", "reasoning")
"""Fields of a chat message in which upstreams send and take thoughts."""
SIGNATURE: Final = "qguide:"
"""Beginning of the signature of this server's thinking blocks; the name of the field follows."""

Given = TypeVar("Given")

_ERROR: Final = "Error: "
_LEVELS_AROUND: Final = 5
"""Lists and objects of a request around the input of a tool_use block."""
_THINKING: Final = ("thinking", "redacted_thinking")


def chat_turns(system: str | Sequence[Part] | None, turns: Sequence[Turn]) -> list[Json]:
    """The messages of a chat completion.

    Raises:
        MalformedHistoryError: a block has no place in a chat completion, or lacks a field.
    """
    chat: list[Json] = []
    if system:
        chat.append({"role": "system", "content": _content(system, "system")})
    for index, turn in enumerate(turns):
        chat.extend(_turns_of(turn, f"messages[{index}].content"))
    return chat


def foreign_thoughts(turns: Sequence[Turn]) -> int:
    """Number of thinking blocks that no upstream of this server gave, so that none gets them."""
    blocks = _blocks(turns)
    return sum(block.type in _THINKING and _field_of(block) is None for block in blocks)


def referenced_tools(turns: Sequence[Turn]) -> set[str]:
    """Names of the tools that a search for tools, run by the caller, has found."""
    contents = (block.content for block in _blocks(turns) if isinstance(block.content, list))
    return {part.tool_name for content in contents for part in content if part.tool_name}


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
    if lone_surrogate_in(read):
        return {INVALID_JSON: arguments}, False
    return read, True


def _finite(number: str) -> float:
    """A number that JSON has.

    Raises:
        ValueError: it is NaN or infinite, also for having too large an exponent.
    """
    if not math.isfinite(read := float(number)):
        raise ValueError(f"{number} is no JSON number")
    return read


def _blocks(turns: Sequence[Turn]) -> Iterator[Block]:
    for turn in turns:
        if not isinstance(turn.content, str):
            yield from turn.content


def _turns_of(turn: Turn, place: str) -> Iterator[Json]:
    if isinstance(turn.content, str):
        yield {"role": turn.role, "content": turn.content}
    elif turn.role == "assistant":
        yield _assistant(turn.content, place)
    else:
        yield from _answers(turn.role, turn.content, place)


def _assistant(blocks: Sequence[Block], place: str) -> Json:
    texts: list[str] = []
    calls: list[Json] = []
    thoughts: dict[str, str] = {}
    for index, block in enumerate(blocks):
        here = f"{place}[{index}]"
        match block.type:
            case "text":
                texts.append(_required(block.text, f"{here}.text"))
            case "tool_use":
                calls.append(_call(block, here))
            case "thinking" | "redacted_thinking":
                if field := _field_of(block):
                    thoughts[field] = thoughts.get(field, "") + (block.thinking or "")
            case other:
                raise _misplaced(other, here, "the assistant's message")
    content = "".join(texts)
    turn = {"role": "assistant", "content": None if calls and not content else content, **thoughts}
    return turn | {"tool_calls": calls} if calls else turn


def _call(block: Block, place: str) -> Json:
    given = block.input or {}
    raw = given.get(INVALID_JSON)
    is_raw = len(given) == 1 and isinstance(raw, str)
    function = {
        "name": _required(block.name, f"{place}.name"),
        "arguments": raw if is_raw else json.dumps(given, ensure_ascii=False),
    }
    return {"id": _required(block.id, f"{place}.id"), "type": "function", "function": function}


def _answers(role: str, blocks: Sequence[Block], place: str) -> Iterator[Json]:
    """Results of tools, then a message of everything else; images of results are in it as well."""
    others: list[Json] = []
    for index, block in enumerate(blocks):
        here = f"{place}[{index}]"
        if block.type != "tool_result":
            others.append(_part(block, here))
            continue
        parts = _parts(block.content or "", f"{here}.content")
        text = PART_END.join(part["text"] for part in parts if part["type"] == "text")
        if block.is_error and not text.startswith(_ERROR):
            text = _ERROR + text
        call_id = _required(block.tool_use_id, f"{here}.tool_use_id")
        yield {"role": "tool", "tool_call_id": call_id, "content": text}
        others.extend(part for part in parts if part["type"] != "text")
    if others or not blocks:
        yield {"role": role, "content": _joined(others)}


def _content(content: str | Sequence[Part], place: str) -> str | list[Json]:
    return _joined(_parts(content, place))


def _parts(content: str | Sequence[Part], place: str) -> list[Json]:
    if isinstance(content, str):
        return [{"type": "text", "text": content}]
    return [_part(part, f"{place}[{index}]") for index, part in enumerate(content)]


def _joined(parts: Sequence[Json]) -> str | list[Json]:
    """One text if there is nothing else: not every upstream takes parts."""
    if all(part["type"] == "text" for part in parts):
        return PART_END.join(part["text"] for part in parts)
    return list(parts)


def _part(part: Part, place: str) -> Json:
    match part.type:
        case "text":
            return {"type": "text", "text": _required(part.text, f"{place}.text")}
        case "image":
            source = _required(part.source, f"{place}.source")
            return {"type": "image_url", "image_url": {"url": _address(source, place)}}
        case "tool_reference":
            name = _required(part.tool_name, f"{place}.tool_name")
            return {"type": "text", "text": f"The tool {name} can be called now."}
        case "document":
            return _document(_required(part.source, f"{place}.source"), place)
    raise _misplaced(part.type, place, "a user's message, a tool's result or `system`")


def _document(source: Source, place: str) -> Json:
    if source.type == "text":
        return {"type": "text", "text": _required(source.data, f"{place}.source.data")}
    if source.type != "base64":
        raise MalformedHistoryError(
            f"{place}.source has the type {source.type[:40]!r}; send a document as base64 or text"
        )
    file = {"filename": "document.pdf", "file_data": _address(source, place)}
    return {"type": "file", "file": file}


def _address(source: Source, place: str) -> str:
    match source.type:
        case "url":
            return _required(source.url, f"{place}.source.url")
        case "base64":
            media_type = _required(source.media_type, f"{place}.source.media_type")
            return f"data:{media_type};base64,{_required(source.data, f'{place}.source.data')}"
    raise MalformedHistoryError(
        f"{place}.source has the type {source.type[:40]!r}; send an image as base64 or url"
    )


def _field_of(block: Block) -> str | None:
    """The field in which the upstream gave these thoughts; None if none of this server's did."""
    signature = block.signature or ""
    field = signature.removeprefix(SIGNATURE)
    return field if field in THOUGHTS and signature != field else None


def _required(value: Given | None, place: str) -> Given:
    if value is None:
        raise MalformedHistoryError(f"{place} is missing; a block of this type needs it")
    return value


def _misplaced(kind: str, place: str, where: str) -> MalformedHistoryError:
    return MalformedHistoryError(
        f"{place} has the type {kind[:40]!r}, which cannot be translated for an upstream as a part "
        f"of {where}; remove it"
    )

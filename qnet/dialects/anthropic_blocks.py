"""Blocks of Anthropic's Messages API as parts of a chat completion's messages. Pure.

The models take whatever was recorded. The server's request bodies are subclasses of them that take less.
"""

import json
from collections.abc import Sequence
from typing import Any, Literal, TypeVar

from qguide.qnet.chat_messages import PART_END, Shape
from qguide.qnet.dialects.shapes import Json, joined
from qguide.qnet.errors import MalformedHistoryError

Given = TypeVar("Given")


class Passage(Shape):
    """A block of text within another."""

    type: str
    text: str | None = None


class Source(Shape):
    """Bytes, text or address of an image or a document."""

    type: str
    media_type: str | None = None
    data: str | None = None
    url: str | None = None
    content: str | Sequence[Passage] | None = None


class Part(Passage):
    """A block that can stand in a user's message, in `system` or in a tool's result.

    Attributes:
        source: of an image or a document; of a search result it is a text.
        content: the passages of a search result.
    """

    source: Source | str | None = None
    tool_name: str | None = None
    title: str | None = None
    content: str | Sequence[Passage] | None = None


class Block(Part):
    """A block of a message's content."""

    id: str | None = None
    name: str | None = None
    toolset_name: str | None = None
    input: dict[str, Any] | None = None
    tool_use_id: str | None = None
    content: str | Sequence[Part] | None = None
    is_error: bool | None = None
    thinking: str | None = None
    signature: str | None = None


class Turn(Shape):
    """One message of a conversation."""

    role: Literal["user", "assistant", "system"]
    content: str | Sequence[Block]


def content_of(content: str | Sequence[Part], place: str) -> str | list[Json]:
    """The content of a chat's message."""
    return joined(parts_of(content, place))


def parts_of(content: str | Sequence[Part], place: str) -> list[Json]:
    """Parts of a chat's message; errors name their `place` in the request."""
    if isinstance(content, str):
        return [{"type": "text", "text": content}]
    return [part_of(part, f"{place}[{index}]") for index, part in enumerate(content)]


def part_of(part: Part, place: str) -> Json:
    """The part of a chat's message that says what a block says."""
    match part.type:
        case "text":
            return {"type": "text", "text": required(part.text, f"{place}.text")}
        case "image":
            address = _address(_source_of(part, place), place)
            return {"type": "image_url", "image_url": {"url": address}}
        case "tool_reference":
            name = required(part.tool_name, f"{place}.tool_name")
            return {"type": "text", "text": f"The tool {name} can be called now."}
        case "document":
            return _document(_source_of(part, place), place)
        case "browser_state":
            state = {k: v for k, v in (part.model_extra or {}).items() if k != "cache_control"}
            return {"type": "text", "text": f"Browser: {json.dumps(state, ensure_ascii=False)}"}
        case "search_result":
            return {"type": "text", "text": _search_result(part, place)}
    raise misplaced(part.type, place, "a user's message, a tool's result or `system`")


def _source_of(part: Part, place: str) -> Source:
    if (source := part.source) is None:
        raise _missing(f"{place}.source")
    if isinstance(source, str):
        raise MalformedHistoryError(
            f"{place}.source is a text, which only a search_result has; send an object with `type`"
        )
    return source


def _search_result(part: Part, place: str) -> str:
    if (source := part.source) is None:
        raise _missing(f"{place}.source")
    if (content := part.content) is None:
        raise _missing(f"{place}.content")
    head = f"{part.title or ''} ({source if isinstance(source, str) else source.url or ''})"
    return f"{head.strip()}\n{_text_of(content, place)}"


def _text_of(content: str | Sequence[Passage], place: str) -> str:
    if isinstance(content, str):
        return content
    if other := next((one.type for one in content if one.type != "text"), ""):
        raise misplaced(other, f"{place}.content", "a document or a search_result")
    return PART_END.join(passage.text for passage in content if passage.text)


def _document(source: Source, place: str) -> Json:
    if source.type == "text":
        return {"type": "text", "text": required(source.data, f"{place}.source.data")}
    if source.type == "content":
        if (content := source.content) is None:
            raise _missing(f"{place}.source.content")
        return {"type": "text", "text": _text_of(content, f"{place}.source")}
    if source.type != "base64":
        raise MalformedHistoryError(
            f"{place}.source has the type {source.type[:40]!r}; send a document as base64, text or content"
        )
    file = {"filename": "document.pdf", "file_data": _address(source, place)}
    return {"type": "file", "file": file}


def _address(source: Source, place: str) -> str:
    match source.type:
        case "url":
            return required(source.url, f"{place}.source.url")
        case "base64":
            media_type = required(source.media_type, f"{place}.source.media_type")
            return f"data:{media_type};base64,{required(source.data, f'{place}.source.data')}"
    raise MalformedHistoryError(f"{place}.source has the type {source.type[:40]!r}; send an image as base64 or url")


def required(value: Given | None, place: str) -> Given:
    """The value; None is an error."""
    if value is None:
        raise _missing(place)
    return value


def _missing(place: str) -> MalformedHistoryError:
    return MalformedHistoryError(f"{place} is missing; a block of this type needs it")


def misplaced(kind: str, place: str, where: str) -> MalformedHistoryError:
    """The error of a block that cannot stand where it is."""
    return MalformedHistoryError(
        f"{place} has the type {kind[:40]!r}, which cannot be translated for an upstream as a part "
        f"of {where}; remove it"
    )

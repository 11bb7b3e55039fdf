"""Messages and tool calls in OpenAI's shape, and their conversions from and to `qguide.qnet.types`.

The models take whatever an upstream answers. The server's request bodies are subclasses of them
that take less.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator

from qguide.qnet.turns import paced
from qguide.qnet.types import Message, ToolCall

PART_END = "\n"
"""Separates the texts of a turn that has several parts."""

Content = str | Sequence[Mapping[str, Any]]
"""Content of a turn: a string, or a list of parts of which some are text."""


class Shape(BaseModel, frozen=True, extra="allow"):
    """A part of a message; fields that it does not name are kept."""


class Function(Shape):
    """A function's name and the arguments of one call."""

    name: str
    arguments: Annotated[str, BeforeValidator(lambda said: said or "")] = ""


class FunctionCall(Shape):
    """One call of a function; its fields say so, whatever an upstream writes as its type."""

    id: str | None = None
    type: Annotated[str, BeforeValidator(lambda _: "function")] = "function"
    function: Function

    def to_call(self) -> ToolCall:
        """The same call as `qnet` knows it."""
        return ToolCall(self.function.name, self.function.arguments, self.id or "")


class CustomTool(Shape):
    """A custom tool's name and the input of one call, which is any text."""

    name: str
    input: str = ""


class CustomCall(Shape):
    """One call of a custom tool; its fields say so, as with a function's."""

    id: str | None = None
    type: Annotated[str, BeforeValidator(lambda _: "custom")] = "custom"
    custom: CustomTool

    def to_call(self) -> ToolCall:
        """The same call as `qnet` knows it."""
        return ToolCall(self.custom.name, self.custom.input, self.id or "", "custom")


def calls_of(
    calls: Iterable[FunctionCall | CustomCall] | None, function_call: Function | None = None
) -> tuple[ToolCall, ...]:
    """The calls of a turn.

    Args:
        function_call: the one call, as it was spelt before there were tools.
    """
    found = [call.to_call() for call in paced(calls or ())]
    if function_call:
        found.append(ToolCall(function_call.name, function_call.arguments))
    return tuple(found)


def wire_message(message: Message) -> dict[str, Any]:
    """A turn in OpenAI's shape; unchanged if it came in that shape."""
    return plain_message(message) if message.wire is None else dict(message.wire)


def plain_message(message: Message) -> dict[str, Any]:
    """A turn in OpenAI's shape, with nothing but what `qnet` knows of it."""
    row: dict[str, Any] = {"role": message.role, "content": message.content}
    if message.tool_calls:
        row["content"] = message.content or None
        row["tool_calls"] = [_wire_call(call) for call in message.tool_calls]
    if message.role == "tool":
        row["tool_call_id"] = message.tool_call_id
    return row


def reworded(content: Content, start: int, end: int, text: str) -> Content:
    """A turn's content with the text from `start` to `end` replaced; positions as in `text_of`.

    Parts that lose all their text are dropped; other fields of a part stay.
    """
    if isinstance(content, str):
        return content[:start] + text + content[end:]
    parts: list[Mapping[str, Any]] = []
    at = 0
    for part in content:
        said = part_text(part)
        if said is None:
            parts.append(part)
            continue
        first = at <= start <= at + len(said) and bool(text)
        left = said[: max(0, start - at)] + (text if first else "") + said[max(0, end - at) :]
        text = "" if first else text
        if left or not said:
            parts.append({**part, "text": left})
        at += len(said) + len(PART_END)
    return parts


def text_of(content: Content | None, *, separator: str = PART_END) -> str:
    """The text of a turn's content, without its parts that are not text."""
    if content is None or isinstance(content, str):
        return content or ""
    return separator.join(said for part in content if (said := part_text(part)) is not None)


def part_text(part: Mapping[str, Any]) -> str | None:
    """The text of a part; None if it is not text."""
    said = part.get("text") if part.get("type") == "text" else None
    return said if isinstance(said, str) else None


def _wire_call(call: ToolCall) -> dict[str, Any]:
    if call.kind == "custom":
        said = {"name": call.name, "input": call.arguments}
    else:
        said = {"name": call.name, "arguments": call.arguments}
    return {"id": call.id, "type": call.kind, call.kind: said}


def tools_in(parameters: Mapping[str, object]) -> tuple[Mapping[str, Any], ...]:
    """The tools that a request's parameters offer; what has no shape of a tool is left out."""
    tools = parameters.get("tools")
    if not isinstance(tools, Sequence):
        return ()
    return tuple(tool for tool in tools if isinstance(tool, Mapping))

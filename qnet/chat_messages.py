"""Messages of chat completions: their shape and conversions from and to `qguide.qnet.types`, and what acts in a reply.

The models take whatever an upstream answers. The server's request bodies are subclasses of them
that take less. Replies that do the same are one action, whatever was thought before it.
"""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any, Final

from pydantic import BaseModel, BeforeValidator

from qguide.qnet.turns import paced
from qguide.qnet.types import Message, ToolCall

PART_END = "\n"
"""Separates the texts of a turn that has several parts."""

Content = str | Sequence[Mapping[str, Any]]
"""Content of a turn: a string, or a list of parts of which some are text."""

ACTION_PREFIX: Final = "Action:"

_THOUGHTS: Final = frozenset(("thought", "thoughts", "thinking", "reasoning", "rationale", "reflection"))
"""Fields of a JSON object that say why, and do nothing; an explanation may be the answer itself."""
_TAG: Final = re.compile(r"[A-Z][A-Z_]+(?: [^\[\]\n]{1,200})?")  # a command in capitals
_FENCE: Final = "```"
_WRAPPINGS: Final = ((_FENCE, _FENCE), *((f"<{tag}>", f"</{tag}>") for tag in ("action", "command", "tool_call")))


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
    """The calls of a turn; `function_call` is the one call, as it was spelt before there were tools."""
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
            parts.append({**part, part["type"]: left})
        at += len(said) + len(PART_END)
    return parts


def text_of(content: Content | None, *, separator: str = PART_END) -> str:
    """The text of a turn's content, without its parts that are not text."""
    if content is None or isinstance(content, str):
        return content or ""
    return separator.join(said for part in content if (said := part_text(part)) is not None)


def reply_text(message: Mapping[str, Any]) -> str:
    """The text of a reply, which may be a refusal in place of content."""
    refusal = message.get("refusal")
    return text_of(message.get("content")) or (refusal if isinstance(refusal, str) else "")


def part_text(part: Mapping[str, Any]) -> str | None:
    """The text of a part, which may be a refusal; None if it is not text."""
    said = part.get(part["type"]) if part.get("type") in ("text", "refusal") else None
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


def json_object(text: str) -> dict[str, Any] | None:
    """The JSON object that a text is; None if it is none, or is nested without end."""
    try:
        read = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return read if isinstance(read, dict) else None


def message_key(reply: Message) -> str:
    """The part of a reply that acts; it is equal for replies that differ only in their thoughts.

    Tool calls are equal by name and canonical arguments. Of a text it is what stands behind the last "Action:", else
    all of it; if this ends with the only block of code or <action> in it, or behind a sentence with a tag such as
    [OFFER voucher], what is inside of that; if it is a JSON object, all fields but thoughts. All lines count, because
    an action may be code, or have its input on a line of its own.
    """
    if reply.tool_calls:
        calls = [f"{call.name}({call.canonical_arguments})" for call in reply.tool_calls]
        return "\n".join(calls)
    _, marker, behind = reply.content.rpartition(ACTION_PREFIX)
    said = behind.strip() or reply.content.strip()
    if not marker and (tag := _tag_behind(said)):
        return tag
    return _without_thoughts(_unwrapped(said, whole=bool(marker)))


def _tag_behind(text: str) -> str:
    """The tag behind the last whole sentence of a text; "" without: in "Press [OK]" it is a part of one."""
    before, _, tag = text.partition("[")
    sentence = before.rstrip()
    gap = before[len(sentence) :]
    behind = not sentence or "\n" in gap or (bool(gap) and sentence[-1] in ".!?:")
    return tag[:-1] if behind and tag.endswith("]") and _TAG.fullmatch(tag[:-1]) else ""


def _unwrapped(text: str, *, whole: bool) -> str:
    """Content of the one block of code or tag with which a text ends, or which is the `whole`; else the text."""
    for begin, end in _WRAPPINGS:
        before, found, within = text.removesuffix(end).partition(begin)
        if text.endswith(end) and found and begin not in within and not (whole and before):
            return (_code(within) if begin == _FENCE else within).strip() or text
    return text


def _code(block: str) -> str:
    language, newline, code = block.partition("\n")
    return code if newline and len(language.split()) < 2 else block


def _without_thoughts(text: str) -> str:
    """A JSON object in canonical form without its thoughts; any other text as it is."""
    if not (text.startswith("{") and text.endswith("}")):
        return text
    try:
        fields = json.loads(text)
        acting = {name: v for name, v in fields.items() if name.lower() not in _THOUGHTS}
        key = json.dumps(acting or fields, sort_keys=True, ensure_ascii=False)
        key.encode()
    except (ValueError, RecursionError):  # no JSON, half a character, or nested without end
        return text
    return key


def effects_of(replies: Sequence[Message]) -> tuple[int, ...]:
    """Number of each reply's effect, counted from 0 in the order of first appearance.

    Replies with equal keys have one effect, whatever was thought before the action.
    """
    keys = [message_key(reply) for reply in replies]
    number = {key: i for i, key in enumerate(dict.fromkeys(keys))}
    return tuple(number[key] for key in keys)

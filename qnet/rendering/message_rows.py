"""Messages as rows, a chat template's input, in the shapes that templates expect."""

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from qguide.qnet.rendering.chat_template import Row
from qguide.qnet.types import Message, Role, ToolCall

_SEPARATOR = "\n\n"
"""Between the texts of messages that a template takes as one; Gemma's template puts the same
between the system's text and the first user's."""


@dataclass(frozen=True, slots=True)
class RowStyle:
    """Shapes of content and arguments; templates read one or the other.

    Attributes:
        parts: content is a list of parts, as models with images have it.
        arguments_as_text: a call's arguments are JSON text instead of an object.
        without_content: a row of nothing but calls has no content instead of an empty one.
    """

    parts: bool = False
    arguments_as_text: bool = False
    without_content: bool = False

    def content(self, text: str) -> object:
        """A message's text."""
        return [{"type": "text", "text": text}] if self.parts else text


CALL_STYLES = (
    RowStyle(),
    RowStyle(arguments_as_text=True),
    RowStyle(without_content=True),
    RowStyle(arguments_as_text=True, without_content=True),
)
"""Ways to write a row with calls, the usual one first."""


def text_row(role: str, text: str, style: RowStyle) -> Row:
    """A row of nothing but text."""
    return {"role": role, "content": style.content(text)}


def call_row(message: Message, style: RowStyle) -> Row:
    """An assistant's row with its calls."""
    row = text_row("assistant", message.content, style)
    if style.without_content and not message.content:
        del row["content"]
    row["tool_calls"] = [
        {
            "id": call_id(number),
            "type": "function",
            "function": {"name": call.name, "arguments": _arguments(call, style)},
        }
        for number, call in enumerate(message.tool_calls)
    ]
    return row


def result_row(text: str, number: int, names: Sequence[str], style: RowStyle) -> Row:
    """A tool's row: the result of the call with that number."""
    called = min(number, len(names) - 1)
    row = text_row("tool", text, style)
    return row | {"tool_call_id": call_id(called), "name": names[called]}


def call_id(number: int) -> str:
    """Id of a call: the drawn ones are random, so no token may come from them.

    Nine characters: templates that look at ids want as many.
    """
    return f"{number:09}"


def as_turns(
    messages: Iterable[Message],
    *,
    later_system: bool,
    users_in_a_row: bool,
    first: bool,
    called: bool,
) -> list[Message]:
    """System, user and tool messages, changed to what the template takes.

    Args:
        later_system: it takes system messages at any place.
        users_in_a_row: it takes two user messages in a row.
        first: the messages open the conversation, where a system message has its place.
        called: a tool's messages answer to calls that the template prints.
    """
    turns: list[Message] = []
    for message in messages:
        role: Role = "system" if message.role == "developer" else message.role
        if role == "tool" and not called:
            role = "user"
        if role == "system" and not later_system:
            leading = first and all(turn.role == "system" for turn in turns)
            role = "system" if leading else "user"
        turn = Message(role, message.text)
        apart = later_system if role == "system" else users_in_a_row or role == "tool"
        if turns and turns[-1].role == role and not apart:
            turns[-1] = _merged((turns[-1], turn), role)
        else:
            turns.append(turn)
    return turns


def with_folded_system(turns: Sequence[Message]) -> list[Message]:
    """The same with the opening system message at the start of the first user's."""
    if not turns or turns[0].role != "system":
        return list(turns)
    if len(turns) > 1 and turns[1].role == "user":
        return [_merged(turns[:2], "user"), *turns[2:]]
    return [replace(turns[0], role="user"), *turns[1:]]


def as_one_user(messages: Sequence[Message]) -> Message:
    """All messages as one of the user's."""
    return _merged(messages, "user")


def exchanges(messages: Sequence[Message]) -> Iterator[tuple[Message | None, tuple[Message, ...]]]:
    """Each action with the messages behind it; before the first action there is none."""
    reply: Message | None = None
    group: list[Message] = []
    for message in messages:
        if message.role == "assistant":
            yield reply, tuple(group)
            reply, group = message, []
        else:
            group.append(message)
    yield reply, tuple(group)


def _merged(messages: Sequence[Message], role: Role) -> Message:
    return Message(role, _SEPARATOR.join(message.text for message in messages))


def _arguments(call: ToolCall, style: RowStyle) -> object:
    """An object, as most templates expect it; the text itself where it is none."""
    if style.arguments_as_text:
        return call.canonical_arguments
    try:
        arguments = json.loads(call.canonical_arguments)
    except (ValueError, RecursionError):
        return call.canonical_arguments
    return arguments if isinstance(arguments, dict) else call.canonical_arguments

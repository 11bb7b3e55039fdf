"""A tokenizer's chat template, its input rows, and messages as rows in the shapes it expects."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final, Literal

from qguide.qnet.chat_messages import json_object
from qguide.qnet.errors import RenderingError
from qguide.qnet.types import Message, Role, ToolCall

PLAIN_TEMPLATE = (
    "{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}"
    "{% if m['role'] == 'assistant' %}{{ eos_token }}{% endif %}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}"
)
"""For tokenizers of base models, which bring no chat template."""

THINKING_TAGS: Final = frozenset({"<think>", "</think>", "[THINK]", "[/THINK]"})
"""Control tokens that replies may hold: they delimit thinking and do not end a turn."""

_DATE: Final = {
    "%d": "26",
    "%-d": "26",
    "%e": "26",
    "%b": "Jul",
    "%B": "July",
    "%m": "07",
    "%Y": "2024",
    "%y": "24",
    "%A": "Friday",
    "%a": "Fri",
    "%H": "00",
    "%M": "00",
    "%S": "00",
}
# Templates that print today's date would make other tokens in serving than in training, and throw
# the cached prefixes away at midnight. The macro hides transformers' function of that name.
_FIXED_DATE: Final = (
    "{% macro strftime_now(format='%Y-%m-%d') %}{{ format"
    + "".join(f" | replace('{name}', '{value}')" for name, value in _DATE.items())
    + " }}{% endmacro %}{{ '' }}"
)

Row = dict[str, Any]
"""Template's input for one message."""


class ChatTemplate:
    """Renders rows with the tokenizer's template, on the same date every day.

    Attributes:
        control_tokens: every special token; messages may contain only those in `THINKING_TAGS`.
    """

    def __init__(self, tokenizer: "PreTrainedTokenizerBase") -> None:
        self._tokenizer = tokenizer
        self.eos = str(tokenizer.eos_token)
        self._source = _source_of(tokenizer)
        added = (str(t.content) for t in tokenizer.added_tokens_decoder.values() if t.special)
        self.control_tokens = frozenset({*map(str, tokenizer.all_special_tokens), *added})
        longest_first = sorted(self.control_tokens, key=len, reverse=True)
        # Templates concatenate bos_token to strings, which fails on None.
        self._defaults: dict[str, Any] = {} if tokenizer.bos_token else {"bos_token": ""}
        self._longest = max(map(len, longest_first))
        self._control = re.compile("|".join(map(re.escape, longest_first)))

    def render(self, rows: Sequence[Row], *, prompt: bool = False) -> str:
        """Text of the rows."""
        try:
            text = self._tokenizer.apply_chat_template(
                list(rows), chat_template=self._source, tokenize=False, add_generation_prompt=prompt, **self._defaults
            )
        except Exception as error:  # templates fail in any way on a conversation they do not expect
            raise RenderingError(
                f"the chat template refuses these turns: {error}; send turns in the roles and order it was trained on"
            ) from error
        return str(text)

    def common_length(self, one: str, other: str) -> int:
        """Length of the common beginning of two texts that cuts no control token of either."""
        length = common_length(one, other)
        for text in (one, other):
            for found in self._control.finditer(text, max(0, length - self._longest)):
                if found.start() >= length:
                    break
                if found.start() < length < found.end():
                    length = found.start()
        return length

    def has_control(self, text: str) -> bool:
        """True if the text holds a control token."""
        return self._control.search(text) is not None

    def leading_control(self, text: str) -> str:
        """The control token that the text begins with, or nothing."""
        found = self._control.match(text)
        return found.group() if found else ""

    def last_control(self, text: str) -> str:
        """The control token that the text ends with, or nothing."""
        found = [one for one in self._control.finditer(text) if one.end() == len(text)]
        return found[-1].group() if found else ""

    def end_of_turn(self, text: str) -> int:
        """Length of the text up to its first eos, else its last control token; 0 without any."""
        head, eos, _ = text.partition(self.eos)
        if eos:
            return len(head) + len(eos)
        return max((found.end() for found in self._control.finditer(text)), default=0)


def common_length(one: str, other: str) -> int:
    """Length of the common beginning of two texts."""
    low, high = 0, min(len(one), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        if one.startswith(other[low:middle], low):
            low = middle
        else:
            high = middle - 1
    return low


def _source_of(tokenizer: "PreTrainedTokenizerBase") -> str:
    template: Any = tokenizer.chat_template or PLAIN_TEMPLATE
    if isinstance(template, dict):  # several templates by name
        template = template.get("default") or next(iter(template.values()))
    source = str(template)
    return _FIXED_DATE + source if "strftime_now" in source else source


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
    messages: Iterable[Message], *, later_system: bool, users_in_a_row: bool, first: bool, called: bool
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
    read = None if style.arguments_as_text else json_object(call.canonical_arguments)
    return call.canonical_arguments if read is None else read


Thinking = Literal["kept", "dropped"]
System = Literal["own turn", "first user turn", "folded"]
CallShape = tuple[bool, bool]
"""Form of an assistant message with calls: (it also has a text, it has several calls)."""


@dataclass(frozen=True, slots=True)
class TemplateTraits:
    """Traits of a chat template, as its renderings show them.

    Attributes:
        call_styles: of the calls that it prints with their results; others are rendered as text.
        system: a turn of its own, put into the first user's turn by the template, or put there by
            the renderer because the template refuses or loses it.
        system_alone: it takes a system message that no user's follows yet.
        later_system: it takes system messages at any place.
        users_in_a_row: it takes two user messages in a row.
        positional: a turn's text depends on the number of turns before it.
    """

    style: RowStyle = field(default_factory=RowStyle)
    call_styles: Mapping[CallShape, RowStyle] = field(default_factory=dict)
    system: System = "own turn"
    system_alone: bool = True
    later_system: bool = True
    users_in_a_row: bool = True
    thinking: Thinking = "kept"
    positional: bool = False


def call_shape(message: Message) -> CallShape:
    """Shape of a message with calls."""
    return bool(message.content), len(message.tool_calls) > 1


if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

"""Traits of a chat template: which messages it takes, and where it puts what they say."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from qguide.qnet.rendering.chat_template import RowStyle
from qguide.qnet.types import Message

Thinking = Literal["kept", "dropped"]
System = Literal["own turn", "first user turn", "folded"]
CallShape = tuple[bool, bool]
"""Form of an assistant message with calls: (it also has a text, it has several calls)."""


@dataclass(frozen=True, slots=True)
class TemplateTraits:
    """Traits of a chat template, as its renderings show them.

    Attributes:
        style: of rows without calls.
        call_styles: of the calls that it prints with their results; others are rendered as text.
        system: a turn of its own, put into the first user's turn by the template, or put there by
            the renderer because the template refuses or loses it.
        system_alone: it takes a system message that no user's follows yet.
        later_system: it takes system messages at any place.
        users_in_a_row: it takes two user messages in a row.
        thinking: whether thoughts stay in a finished turn.
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

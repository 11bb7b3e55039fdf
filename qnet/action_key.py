"""The part of a reply that acts. Pure.

Replies with equal keys have one effect, whatever was thought before the action.
"""

from collections.abc import Sequence
from typing import Final

from qguide.qnet.types import Message

ACTION_PREFIX: Final = "Action:"


def message_key(reply: Message) -> str:
    """The part of a reply that acts: its tool calls, or all text behind the last "Action:".

    Tool calls are equal by name and canonical arguments. A text without the marker is its own key.
    All lines behind the marker count, because an action may be code, or have its input on a line
    of its own.
    """
    if reply.tool_calls:
        calls = [f"{call.name}({call.canonical_arguments})" for call in reply.tool_calls]
        return "\n".join(calls)
    return reply.content.rpartition(ACTION_PREFIX)[2].strip() or reply.content.strip()


def effects_of(replies: Sequence[Message]) -> tuple[int, ...]:
    """Number of each reply's effect, counted from 0 in the order of first appearance."""
    keys = [message_key(reply) for reply in replies]
    number = {key: i for i, key in enumerate(dict.fromkeys(keys))}
    return tuple(number[key] for key in keys)

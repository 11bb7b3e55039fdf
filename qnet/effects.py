"""The part of a reply that acts: replies that do the same are one action, whatever was thought."""

import json
import re
from collections.abc import Sequence
from typing import Final

from qguide.qnet.types import Message

ACTION_PREFIX: Final = "Action:"

_THOUGHTS: Final = frozenset(("thought", "thoughts", "thinking", "reasoning", "rationale", "reflection"))
"""Fields of a JSON object that say why, and do nothing; an explanation may be the answer itself."""
_TAG: Final = re.compile(r"[A-Z][A-Z_]+(?: [^\[\]\n]{1,200})?")
"""A command in capitals."""
_FENCE: Final = "```"
_WRAPPINGS: Final = ((_FENCE, _FENCE), *((f"<{tag}>", f"</{tag}>") for tag in ("action", "command", "tool_call")))


def message_key(reply: Message) -> str:
    """The part of a reply that acts; it is equal for replies that differ only in their thoughts.

    Tool calls are equal by name and canonical arguments. Of a text it is what stands behind the
    last "Action:", else all of it; if this ends with the only block of code or <action> in it, or
    behind a sentence with a tag such as [OFFER voucher], what is inside of that; if it is a JSON
    object, all fields but thoughts. All lines count, because an action may be code, or have its
    input on a line of its own.
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
    """The content of the one block of code or tag with which a text ends; else the text.

    Args:
        whole: nothing may stand before it, such as the name of a tool whose input it is.
    """
    for begin, end in _WRAPPINGS:
        before, found, within = text.removesuffix(end).partition(begin)
        if text.endswith(end) and found and begin not in within and not (whole and before):
            return (_code(within) if begin == _FENCE else within).strip() or text
    return text


def _code(block: str) -> str:
    """A block of code without the name of its language."""
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

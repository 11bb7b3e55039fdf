"""Histories as Q models read them, where a policy reads more: images, prefills, instructions last.

A Q model reads text, and needs an observation last, which the candidates answer. What it cannot read is left out or
read in another role, with a warning; the policy gets the history as it is.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

from qguide.qnet.chat_messages import PART_END
from qguide.qnet.errors import MalformedHistoryError
from qguide.qnet.types import INSTRUCTING, History, Message
from qguide.server.own_bodies.history import check_readable

_SHOWN_CHARACTERS: Final = 40


@dataclass(frozen=True, slots=True)
class ReadableView:
    """A history in which a Q model can read what precedes the candidates."""

    history: History
    prefill: str  # beginning of the assistant's turn that the candidates go on with; "" if none
    warnings: tuple[str, ...]

    def candidate(self, message: Message) -> Message:
        """A candidate as the whole turn of the assistant, its prefill included."""
        if not self.prefill or message.content.startswith(self.prefill):
            return message
        return replace(message, content=self.prefill + message.content, wire=None)


def readable_view(history: History, parameters: Mapping[str, object] | None = None) -> ReadableView | None:
    """The view of a history that no Q model reads as it is; None if there is none.

    Args:
        parameters: the request's other parameters; `continue_final_message` says that candidates continue the last
            message's text without a break.
    """
    warnings: list[str] = []
    if not any(message.content.strip() for message in history if message.role != "assistant"):
        return None  # images alone leave nothing that answers could be compared by
    read, prefill = _without_prefill(_texts(history, warnings), parameters or {}, warnings)
    read = _answerable(read, warnings)
    if not read:
        return None
    try:
        check_readable(read)
    except MalformedHistoryError:
        return None
    return ReadableView(read, prefill, tuple(warnings))


def _texts(history: History, warnings: list[str]) -> History:
    """The messages with nothing but their texts and tool calls.

    A message without either is left out, but for one whose parts cannot be read: its turn stays.
    """
    read = []
    for index, message in enumerate(history):
        place = f"messages[{index}] ({message.role})"
        plain = replace(message, wire=None)
        kinds = ", ".join(sorted({str(json.loads(part).get("type"))[:_SHOWN_CHARACTERS] for part in message.unread}))
        if kinds:
            warnings.append(f"{place} has parts that the Q model does not read: {kinds}")
        if message.role == "tool" or message.text.strip():
            read.append(plain)
        elif kinds:
            read.append(replace(plain, content=f"[{kinds}]"))
        else:
            warnings.append(f"{place} is empty and was left out for the Q model")
    return tuple(read)


def _without_prefill(history: History, parameters: Mapping[str, object], warnings: list[str]) -> tuple[History, str]:
    """The history without the assistant's text at its end, and that text."""
    if not history or history[-1].role != "assistant" or history[-1].tool_calls:
        return history, ""
    warnings.append("the last message is the assistant's; Q is that of its text and the candidate as one turn")
    text = history[-1].content
    continues = bool(parameters.get("continue_final_message"))
    return history[:-1], text if continues else f"{text}{PART_END}"


def _answerable(history: History, warnings: list[str]) -> History:
    """The history with an instruction at its end as a user's message, which can be answered."""
    spoken = [message.role for message in history if message.role not in INSTRUCTING]
    if not history or history[-1].role not in INSTRUCTING or spoken[-1:] not in ([], ["assistant"]):
        return history
    warnings.append(f"the last message ({history[-1].role}) was read as the user's by the Q model")
    return (*history[:-1], replace(history[-1], role="user"))

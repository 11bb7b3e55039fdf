"""A sample of a recording, and what the samples tell."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from qguide.qnet.types import Message, ToolCall
from qguide.training.recordings.fields import Fields

TASK: Final = "Find the mug."

ARGUMENTS: Final = {"at": "desk"}

CALLED: Final = (
    Message("user", TASK),
    Message("assistant", "I look.", (ToolCall("look", json.dumps(ARGUMENTS)),)),
    Message("tool", "A mug."),
    Message("assistant", "It is on the desk."),
)
"""The episode with a call of a tool."""

SAID: Final = (
    Message("user", TASK),
    Message("assistant", "look desk"),
    Message("user", "A mug."),
    Message("assistant", "take mug"),
    Message("user", "Taken."),
)
"""The episode of an agent that only writes."""

ASKED: Final = (Message("user", TASK), Message("assistant", "It is on the desk."))

SYSTEM: Final = Message("system", "You find things.")

CHAT: Final[list[dict[str, Any]]] = [
    {"role": "user", "content": TASK},
    {
        "role": "assistant",
        "content": "I look.",
        "tool_calls": [
            {"id": "c1", "type": "function", "function": {"name": "look", "arguments": json.dumps(ARGUMENTS)}}
        ],
    },
    {"role": "tool", "tool_call_id": "c1", "content": "A mug."},
    {"role": "assistant", "content": "It is on the desk."},
]
"""The episode with a call, as OpenAI's chat has it."""

_NO_FIELDS: Final = Fields()


@dataclass(frozen=True, slots=True)
class Sample:
    """A recording of one episode, and what import has to read in it.

    Attributes:
        write: writes its files into a folder.
        left_out: numbers of what was left out, in any words.
    """

    format: str
    write: Callable[[Path], None]
    messages: tuple[Message, ...]
    task: str
    reward: float = 1.0
    agent: str = ""
    terminated: bool | None = None
    fields: Fields = _NO_FIELDS
    left_out: tuple[int, ...] = ()


def dump(path: Path, *values: object) -> None:
    """Write values, one per line."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(value) + "\n" for value in values))

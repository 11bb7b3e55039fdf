"""Harbor's Agent Trajectory Interchange Format (ATIF): one trajectory per row.

What ATIF has no field for, such as the reward, lies in `extra`, where `qguide import` finds it.
"""

import hashlib
import json
from collections.abc import Iterator, Sequence
from typing import Any, Final, Literal

from pydantic import Field

from qguide.qnet.records import Row
from qguide.qnet.types import Message, ToolCall
from qguide.training.data.trajectories import UNNAMED, Trajectory
from qguide.training.exports.trl import is_none

VERSION: Final = "ATIF-v1.6"
RAW: Final = "raw_arguments"
"""The only argument of a call whose arguments are no JSON object."""
_SOURCES: Final = {"system": "system", "developer": "system", "assistant": "agent"}


class AtifCall(Row):
    """One call of a tool."""

    tool_call_id: str
    function_name: str
    arguments: dict[str, Any]


class AtifResult(Row):
    """Observation after a call."""

    source_call_id: str
    content: str


class AtifObservation(Row):
    """The results of a step's calls."""

    results: tuple[AtifResult, ...]


class AtifStep(Row):
    """One step: a message, or a reply with what came of its calls."""

    step_id: int
    source: Literal["system", "user", "agent"]
    message: str
    tool_calls: tuple[AtifCall, ...] | None = Field(default=None, exclude_if=is_none)
    observation: AtifObservation | None = Field(default=None, exclude_if=is_none)
    extra: dict[str, Any] | None = Field(default=None, exclude_if=is_none)


class AtifAgent(Row):
    """The agent, as far as its recording names it."""

    name: str
    version: str = "unknown"


class AtifRow(Row):
    """A trajectory."""

    schema_version: str = VERSION
    session_id: str
    agent: AtifAgent
    steps: tuple[AtifStep, ...]
    extra: dict[str, Any]


def atif_row(episode: Trajectory) -> AtifRow:
    """An episode in ATIF."""
    source = episode.source or UNNAMED
    said = json.dumps([episode.task_id, source, [message.key for message in episode.messages]])
    return AtifRow(
        session_id=hashlib.sha256(said.encode()).hexdigest()[:16],
        agent=AtifAgent(name=source),
        steps=tuple(_steps(episode.messages, episode.mistakes)),
        extra={"task_id": episode.task_id, "reward": episode.reward, "terminated": episode.terminated},
    )


def _steps(messages: Sequence[Message], mistakes: Sequence[int]) -> Iterator[AtifStep]:
    """The steps; results of tools belong to the step that called them."""
    number = replies = 0
    for index, message in enumerate(messages):
        if message.role == "tool":
            continue
        number += 1
        source: Any = _SOURCES.get(message.role, "user")
        agent = source == "agent"
        results = tuple(_results(messages[index + 1 :])) if message.tool_calls else ()
        yield AtifStep(
            step_id=number,
            source=source,
            message=message.content,
            tool_calls=tuple(map(_call, message.tool_calls)) or None,
            observation=AtifObservation(results=results) if results else None,
            extra={"weight": 0} if agent and replies in mistakes else None,
        )
        replies += agent


def _results(rest: Sequence[Message]) -> Iterator[AtifResult]:
    for message in rest:
        if message.role != "tool":
            return
        yield AtifResult(source_call_id=message.tool_call_id, content=message.content)


def _call(call: ToolCall) -> AtifCall:
    try:
        arguments = json.loads(call.arguments or "{}")
    except (ValueError, RecursionError):
        arguments = None
    if not isinstance(arguments, dict):
        arguments = {RAW: call.arguments}
    return AtifCall(tool_call_id=call.id, function_name=call.name, arguments=arguments)

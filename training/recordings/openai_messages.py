"""JSON lines of OpenAI messages with a reward: the rows of fine-tuning data and of agents' logs."""

import json
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

from pydantic import BeforeValidator, Field, ValidationError

from qnet.errors import RecordError
from qnet.openai_messages import CustomCall, Function, FunctionCall, Shape, calls_of, text_of
from qnet.types import Message, Role
from training.recordings.episode import (
    RecordedEpisode,
    build_episode,
    flaw_of,
    read_reward,
    read_task_id,
)
from training.recordings.fields import Fields

_TASK_FIELDS = ("task_id",)


def _as_text(value: object) -> object:
    """Arguments as JSON text; many data sets keep them as an object."""
    return json.dumps(value) if isinstance(value, dict | list) else value


class _RecordedFunction(Function):
    """A called function, its arguments as text or as an object."""

    arguments: Annotated[str, BeforeValidator(lambda said: _as_text(said) or "")] = ""


class _RecordedCall(FunctionCall):
    """A call of a function."""

    function: _RecordedFunction


class _Turn(Shape):
    """One message; `weight` 0 is OpenAI's mark of a reply that is not to be imitated."""

    role: Role
    content: str | list[dict[str, Any]] | None = None
    tool_calls: list[_RecordedCall | CustomCall] | None = None
    tool_call_id: str | None = None
    function_call: _RecordedFunction | None = None
    weight: Annotated[float | None, Field(ge=0, le=1)] = None

    def to_message(self) -> Message:
        """The message, as `qnet` knows it."""
        content = self.content
        for part in content if isinstance(content, list) else ():
            if part.get("type") != "text" or not isinstance(part.get("text"), str):
                raise RecordError("has a part that is not text; Q models read only text")
        calls = calls_of(self.tool_calls, self.function_call)
        return Message(self.role, text_of(content), calls, self.tool_call_id or "")


def to_message(value: object, place: str) -> tuple[Message, bool]:
    """A message in OpenAI's shape, and False if it is not to be imitated.

    Args:
        place: names the message in errors.

    Raises:
        RecordError: it has another shape, or content that is not text.
    """
    if isinstance(value, Mapping) and value.get("role") == "function":
        value = {**value, "role": "tool"}
    try:
        turn = _Turn.model_validate(value)
        return turn.to_message(), turn.weight != 0
    except ValidationError as error:
        raise RecordError(flaw_of(error, place)) from error
    except RecordError as error:
        raise RecordError(f"{place} {error}") from error


def to_messages(values: object, name: str = "messages") -> tuple[list[Message], set[int]]:
    """A list of messages in OpenAI's shape, and the indices of those not to be imitated.

    Raises:
        RecordError: it is no list, or one has another shape or content that is not text.
    """
    if not isinstance(values, Sequence) or isinstance(values, str):
        raise RecordError(f"{name} is not a list")
    messages, ignored = [], set()
    for index, value in enumerate(values):
        message, imitated = to_message(value, f"{name}[{index}]")
        messages.append(message)
        if not imitated:
            ignored.add(index)
    return messages, ignored


def read_message_record(record: Mapping[str, object], fields: Fields) -> RecordedEpisode:
    """The episode of a record `{"messages": […], "reward": …, "task_id": …}`.

    Raises:
        RecordError: it is malformed.
    """
    messages, ignored = to_messages(record.get("messages"))
    terminated = record.get("terminated", True)
    source = record.get("source", "")
    return build_episode(
        messages,
        reward=read_reward(record, fields),
        task_id=read_task_id(record, fields.tasks or _TASK_FIELDS),
        terminated=terminated is not False,
        source=source if isinstance(source, str) else "",
        ignored=ignored,
    )

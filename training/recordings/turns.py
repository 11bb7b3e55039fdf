"""Messages of a recording, in any dialect of today, as messages of `qnet`.

OpenAI's chat, Anthropic's content blocks and the items of the Responses API are told apart message
by message, so that a list may mix them; the codecs of the server translate them. Frameworks write
variants of the first: LangChain's messages, other names of roles, calls without a `function`.
"""

import json
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Final, TypeVar

from pydantic import BeforeValidator, Field, ValidationError

from qguide.qnet.chat_messages import CustomCall, Function, FunctionCall, Shape, calls_of, text_of
from qguide.qnet.dialects import anthropic_blocks, anthropic_requests, responses_requests
from qguide.qnet.errors import InvalidRequestError, MalformedHistoryError, RecordError
from qguide.qnet.types import Message, Role
from qguide.training.recordings.fields import first_at, flaw_of
from qguide.training.recordings.json_stream import parse_text

THOUGHTS: Final = "thoughts, which a chat's next request does not repeat"
"""Parts of messages that were left out, for the report."""

Json = Mapping[str, Any]
Model = TypeVar("Model", bound=Shape)

_ROLES: Final = {
    "human": "user",
    "ai": "assistant",
    "model": "assistant",
    "agent": "assistant",
    "function": "tool",
    "tool-call": "assistant",
    "tool-response": "user",
    "HumanMessage": "user",
    "AIMessage": "assistant",
    "AIMessageChunk": "assistant",
    "SystemMessage": "system",
    "ToolMessage": "tool",
}
_TEXTS: Final = ("text", "system_prompt")
"""Places of a message's text where it has no `content`: in SWE-agent's published trajectories."""
_BLOCKS: Final = ("tool_use", "tool_result")
_ITEM_TEXTS: Final = ("input_text", "output_text")
_NO_TEXT: Final = "has a part that is not text; Q models read only text"
_LOGPROBS: Final = ("logprobs", "logprob", "response_metadata.logprobs")
"""Places of a reply's log-probability; the last is LangChain's."""
_MOST: Final = 1e9
"""Bound of the log-probability of a token, beyond which it is none."""
_THOUGHTS: Final = ("reasoning", *anthropic_requests.THINKING)


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
                raise RecordError(_NO_TEXT)
        calls = calls_of(self.tool_calls, self.function_call)
        return Message(self.role, text_of(content), calls, self.tool_call_id or "")


@dataclass(slots=True)
class Turns:
    """The messages of a recording.

    Attributes:
        ignored: indices of the messages that are not to be imitated.
        logprobs: log-probability of a reply, summed over its tokens, by its index; where it is known.
        left_out: what no Q model reads, and how often it was there.
    """

    messages: list[Message] = field(default_factory=list)
    ignored: set[int] = field(default_factory=set)
    logprobs: dict[int, float] = field(default_factory=dict)
    left_out: Counter[str] = field(default_factory=Counter)

    def add(self, value: object, place: str) -> None:
        """Add what one value says: no message, one, or several."""
        if not isinstance(value, Mapping):
            raise RecordError(f"{place} is not an object")
        for row in _chat_rows(value, place):
            content, thoughts = _without_thoughts(row.get("content"))
            self.left_out[THOUGHTS] += thoughts + _has_thoughts(row)
            message, imitated = _to_message({**row, "content": content}, place)
            if not imitated:
                self.ignored.add(len(self.messages))
            if message.role == "assistant" and (logprob := _logprob(first_at(row, _LOGPROBS))) is not None:
                self.logprobs[len(self.messages)] = logprob
            self.messages.append(message)


def _logprob(said: object) -> float | None:
    """The sum over a reply's tokens: of a number, of numbers, or of OpenAI's `logprobs`; None of anything else."""
    said = said.get("content") if isinstance(said, Mapping) else said
    tokens = said if isinstance(said, list) else [said]
    numbers = [token.get("logprob") if isinstance(token, Mapping) else token for token in tokens]
    known = [n for n in numbers if isinstance(n, int | float) and not isinstance(n, bool) and abs(n) < _MOST]
    return math.fsum(known) if known and len(known) == len(numbers) else None


def read_turns(values: object, name: str = "messages") -> Turns:
    """The messages of a list, or of the JSON text of one."""
    if isinstance(values, str) and values.lstrip().startswith("["):
        values = parse_text(values)
    if not isinstance(values, Sequence) or isinstance(values, str):
        raise RecordError(f"{name} is not a list")
    turns = Turns()
    for index, value in enumerate(values):
        turns.add(value, f"{name}[{index}]")
    turns.left_out = +turns.left_out
    return turns


def to_message(value: object, place: str) -> Message:
    """The one message that a value says."""
    turns = Turns()
    turns.add(value, place)
    if len(turns.messages) != 1:
        raise RecordError(f"{place} is {len(turns.messages)} messages; expected one")
    return turns.messages[0]


def _to_message(row: Json, place: str) -> tuple[Message, bool]:
    try:
        turn = _Turn.model_validate(row)
        return turn.to_message(), turn.weight != 0
    except ValidationError as error:
        raise RecordError(flaw_of(error, place)) from error
    except RecordError as error:
        raise RecordError(f"{place} {error}") from error


def _chat_rows(value: Json, place: str) -> Iterator[Json]:
    """A message in any dialect as rows of a chat."""
    if value.get("object") == "response" and isinstance(value.get("output"), list):
        for index, item in enumerate(value["output"]):
            yield from _chat_rows(item, f"{place}.output[{index}]")
        return
    if "role" not in value and isinstance(value.get("message"), Mapping):
        value = value["message"]  # a choice, as OpenPipe's ART keeps replies
    if isinstance(value.get("kwargs"), Mapping) and isinstance(path := value.get("id"), list):
        value = {**value["kwargs"], "type": str(path[-1]) if path else ""}  # LangChain's JSON
    kind = value.get("type") if isinstance(value.get("type"), str) else None
    if "role" not in value and kind in ("system", "tool", *_ROLES):
        value, kind = {**value, "role": kind}, None
    kinds = _part_types(value)
    if kinds & {*_BLOCKS, *anthropic_requests.THINKING}:
        yield from _block_rows(value, place)
    elif kind in responses_requests.ITEM_TYPES or kinds & {*_ITEM_TEXTS}:
        yield from _item_rows(value, place)
    else:
        yield _chat_row(value)


def _part_types(value: Json) -> set[object]:
    content = value.get("content")
    parts = content if isinstance(content, list) else ()
    return {kind for part in parts if isinstance(part, Mapping) if isinstance(kind := part.get("type"), str)}


def _item_rows(value: Json, place: str) -> Iterator[Json]:
    """An item of the Responses API; thoughts that only OpenAI can read are no row."""
    weight = {"weight": value["weight"]} if "weight" in value else {}
    item = _validated(responses_requests.InputItem, value, place)
    try:
        for row in responses_requests.to_turns(None, [item]):
            yield _chat_row(row | weight)
    except MalformedHistoryError as error:
        raise RecordError(str(error).replace("input[0]", place)) from error
    except InvalidRequestError as error:
        raise RecordError(f"{place} has a part that is not text; Q models read only text") from error


def _block_rows(value: Json, place: str) -> Iterator[Json]:
    """A message of Anthropic's blocks; calls that it also has in a chat's form count once."""
    content = value["content"]
    if value.get("tool_calls"):
        plain = [part for part in content if part.get("type") not in _BLOCKS]
        yield _chat_row({**value, "content": plain})
        return
    blocks = []
    for index, part in enumerate(content):
        here = f"{place}.content[{index}]"
        if _kind(part) not in ("text", *_BLOCKS, *_THOUGHTS):
            raise RecordError(f"{here} is neither text nor a call of a tool or its result; Q models read only text")
        if _kind(part) not in _THOUGHTS:
            blocks.append(_validated(anthropic_blocks.Block, part, here))
    said = {"role": value.get("role"), "content": blocks}
    turn = _validated(anthropic_blocks.Turn, said, place)
    try:
        rows = anthropic_requests.chat_turns(None, [turn])
    except MalformedHistoryError as error:
        raise RecordError(str(error).replace("messages[0]", place)) from error
    kept = {name: value[name] for name in ("weight", "reasoning_content") if name in value}
    thought = [part for part in content if _kind(part) in _THOUGHTS]
    for number, row in enumerate(rows):
        yield {**row, **kept, **({"thinking": thought} if thought and not number else {})}


def _validated(kind: type[Model], value: object, place: str) -> Model:
    try:
        return kind.model_validate(value)
    except ValidationError as error:
        raise RecordError(flaw_of(error, place)) from error


def _kind(part: object) -> object:
    return part.get("type") if isinstance(part, Mapping) else None


def _chat_row(value: Json) -> Json:
    role = value.get("role")
    row = {**value, "role": _ROLES.get(role, role) if isinstance(role, str) else role}
    if row.get("content") is None and (text := first_at(row, _TEXTS)) is not None:
        row["content"] = text
    if isinstance(calls := value.get("tool_calls"), list):
        row["tool_calls"] = [_plain_call(call) for call in calls] or None
    return row


def _plain_call(call: object) -> object:
    """A call that is JSON text (of verifiers), or whose name and arguments do not lie in a `function`."""
    if isinstance(call, str):
        call = parse_text(call)
    if not isinstance(call, Mapping) or isinstance(call.get("function"), Mapping):
        return call
    if isinstance(call.get("custom"), Mapping):
        return call
    name = call.get("name", call.get("function"))
    given: object = next((call[key] for key in ("arguments", "args", "input") if key in call), {})
    return {"id": call.get("id"), "function": {"name": name, "arguments": given}}


def _without_thoughts(content: Any) -> tuple[Any, int]:
    if not isinstance(content, list):
        return content, 0
    kept = [part for part in content if _kind(part) not in _THOUGHTS]
    texts = [{"type": "text", "text": part} if isinstance(part, str) else part for part in kept]
    return texts, len(content) - len(kept)


def _has_thoughts(row: Json) -> bool:
    return any(row.get(name) for name in ("reasoning_content", "reasoning", "thinking"))

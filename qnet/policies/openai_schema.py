"""OpenAI's chat completions from the client's side: requests written, answers read. Pure."""

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from qnet.support.json_depth import exceeds_max_depth
from qnet.types import NOTHING, Candidate, History, Message, Sampling, TokenUsage, ToolCall

_SHOWN_CHARACTERS = 500
_MOST_DIGITS = 300
_HALF = re.compile("[\ud800-\udfff]")
_SECONDS = re.compile(r"[0-9]+(\.[0-9]+)?")
_LONGEST_RETRY_AFTER_S = 86_400.0
_LENGTH = "length"
_NOT_PASSED_ON = frozenset(("id", "object", "created", "model"))
"""Fields of an answer that QGuide's own answer sets itself."""

MaxTokensName = Literal["max_tokens", "max_completion_tokens"]
"""Parameter for the longest completion; OpenAI's reasoning models take only the second."""

PART_END = "\n"
"""Separates the texts of a turn that has several parts."""

Content = str | Sequence[Mapping[str, Any]]
"""Content of a turn: a text, or parts of which some are texts."""


class _Shape(BaseModel):
    """A part of an answer; fields that it does not name are ignored."""

    model_config = ConfigDict(frozen=True)


class _Whole(BaseModel):
    """A part of an answer that is handed on; fields that it does not name are kept."""

    model_config = ConfigDict(frozen=True, extra="allow")

    @property
    def rest(self) -> dict[str, object]:
        """The fields that the class does not name, but for null ones."""
        rest = self.model_extra or {}
        return {name: value for name, value in rest.items() if value is not None}


class _Function(_Whole):
    name: str
    arguments: Annotated[str, BeforeValidator(lambda said: said or "")] = ""


class _FunctionCall(_Whole):
    id: str | None = None
    type: str = "function"
    function: _Function

    def to_call(self) -> ToolCall:
        return ToolCall(self.function.name, self.function.arguments, self.id or "")


class _Custom(_Whole):
    name: str
    input: str = ""


class _CustomCall(_Whole):
    id: str | None = None
    type: str = "custom"
    custom: _Custom

    def to_call(self) -> ToolCall:
        return ToolCall(self.custom.name, self.custom.input, self.id or "", "custom")


class _Said(_Whole):
    role: str = "assistant"
    content: str | list[dict[str, Any]] | None = None
    tool_calls: list[_FunctionCall | _CustomCall] | None = None
    function_call: _Function | None = None

    @property
    def text(self) -> str:
        """The text; of several parts, those that are text."""
        if isinstance(self.content, list):
            return "".join(said for part in self.content if (said := part_text(part)) is not None)
        return self.content or ""


class _Choice(_Whole):
    index: int = 0
    message: _Said
    finish_reason: str | None = None
    logprobs: dict[str, Any] | None = None


class _PromptDetails(_Shape):
    cached_tokens: int | None = None


_Count = Annotated[int, Field(ge=0), BeforeValidator(lambda count: count or 0)]


class _Usage(_Shape):
    prompt_tokens: _Count = 0
    completion_tokens: _Count = 0
    prompt_tokens_details: _PromptDetails | None = None
    completion_tokens_details: dict[str, Any] | None = None

    @property
    def spent(self) -> TokenUsage:
        """The same as `TokenUsage`."""
        details = self.prompt_tokens_details or _PromptDetails()
        return TokenUsage(
            self.prompt_tokens,
            self.completion_tokens,
            details.cached_tokens or 0,
            {
                name: n
                for name, n in (self.completion_tokens_details or {}).items()
                if n and isinstance(n, int)
            },
        )


class _Answer(_Whole):
    choices: list[_Choice]
    usage: _Usage | None = None


class _Bill(_Shape):
    usage: _Usage | None = None


class _Error(_Shape):
    message: str


class _ErrorAnswer(_Shape):
    error: _Error | str | None = None
    message: str = ""


def request_body(
    model: str,
    history: History,
    *,
    n: int,
    sampling: Sampling,
    max_tokens_name: MaxTokensName = "max_tokens",
) -> dict[str, Any]:
    """Body of a request; settings that are None are left to the upstream."""
    known = {
        "n": n if n > 1 else None,
        "temperature": sampling.temperature,
        max_tokens_name: sampling.max_tokens,
        "seed": sampling.seed,
    }
    return {
        **sampling.parameters,
        "model": model,
        "messages": [wire_message(message) for message in history],
        **{name: value for name, value in known.items() if value is not None},
    }


def wire_message(message: Message) -> dict[str, Any]:
    """A turn in OpenAI's shape; unchanged if it came in that shape."""
    if message.wire is not None:
        return dict(message.wire)
    row: dict[str, Any] = {"role": message.role, "content": message.content}
    if message.tool_calls:
        row["content"] = message.content or None
        row["tool_calls"] = [_wire_call(call) for call in message.tool_calls]
    if message.role == "tool":
        row["tool_call_id"] = message.tool_call_id
    return row


def reworded(content: Content, start: int, end: int, text: str) -> Content:
    """A turn's content with the text from `start` to `end` replaced; positions as in `text_of`.

    Parts that lose all their text are dropped; other fields of a part stay.
    """
    if isinstance(content, str):
        return content[:start] + text + content[end:]
    parts: list[Mapping[str, Any]] = []
    at = 0
    for part in content:
        said = part_text(part)
        if said is None:
            parts.append(part)
            continue
        first = at <= start <= at + len(said) and bool(text)
        left = said[: max(0, start - at)] + (text if first else "") + said[max(0, end - at) :]
        text = "" if first else text
        if left or not said:
            parts.append({**part, "text": left})
        at += len(said) + len(PART_END)
    return parts


def text_of(content: Content | None) -> str:
    """The text of a turn's content, without its parts that are not text."""
    if content is None or isinstance(content, str):
        return content or ""
    return PART_END.join(said for part in content if (said := part_text(part)) is not None)


def part_text(part: Mapping[str, Any]) -> str | None:
    """The text of a part; None if it is not text."""
    said = part.get("text") if part.get("type") == "text" else None
    return said if isinstance(said, str) else None


def _wire_call(call: ToolCall) -> dict[str, Any]:
    if call.kind == "custom":
        said = {"name": call.name, "input": call.arguments}
    else:
        said = {"name": call.name, "arguments": call.arguments}
    return {"id": call.id, "type": call.kind, call.kind: said}


def _loaded(answer: bytes) -> object:
    """Parse JSON into what can be written as JSON again.

    Infinity and NaN become null (the log-probability of an impossible token may be -Infinity), and
    so do numbers of hundreds of digits; a lone surrogate becomes U+FFFD.
    """
    text = answer.decode("utf-8-sig", "replace")
    read: object = json.loads(
        text, parse_constant=lambda _: None, parse_float=_finite, parse_int=_whole
    )
    return _without_halves(read) if "\\ud" in text.lower() else read


def _finite(digits: str) -> float | None:
    number = float(digits)
    return number if math.isfinite(number) else None


def _whole(digits: str) -> int | None:
    return int(digits) if len(digits) <= _MOST_DIGITS else None


def _without_halves(value: Any) -> Any:
    """Replace lone surrogates, which JSON can spell and UTF-8 cannot."""
    if isinstance(value, str):
        return _HALF.sub("\ufffd", value)
    if isinstance(value, list):
        return [_without_halves(part) for part in value]
    if isinstance(value, dict):
        return {_without_halves(name): _without_halves(part) for name, part in value.items()}
    return value


@dataclass(frozen=True, slots=True)
class Completion:
    """An answer with status 200, as far as it can be read.

    Attributes:
        candidates: one per choice; none if the answer is no completion or is nested too deeply.
        usage: token usage that the answer states, also if it is no completion.
        is_object: True for a JSON object, as every answer of OpenAI's interface is.
    """

    candidates: list[Candidate] = field(default_factory=list)
    usage: TokenUsage = NOTHING
    is_object: bool = False


def read_completion(answer: bytes) -> Completion:
    """Read an upstream's answer; never raises."""
    try:
        said = _loaded(answer)
    except RecursionError:
        return Completion(is_object=answer.lstrip().startswith(b"{"))
    except ValueError:
        return Completion()
    if not isinstance(said, dict):
        return Completion()
    usage = _usage_of(said)
    try:
        read = _Answer.model_validate(said)
    except (ValidationError, RecursionError):
        return Completion([], usage, is_object=True)
    if exceeds_max_depth(said):
        return Completion([], usage, is_object=True)
    return Completion(_candidates_of(read), usage, is_object=True)


def _usage_of(said: dict[str, Any]) -> TokenUsage:
    try:
        usage = _Bill.model_validate(said).usage
    except (ValidationError, RecursionError):
        return NOTHING
    return usage.spent if usage else NOTHING


def _candidates_of(read: _Answer) -> list[Candidate]:
    usage = read.usage or _Usage()
    shares = _split(usage.completion_tokens, len(read.choices))
    return [
        Candidate(
            message=_message(choice.message),
            completion_tokens=share,
            finished=choice.finish_reason != _LENGTH,
            prompt_tokens=usage.prompt_tokens,
            spent=None if index else usage.spent,
            finish_reason=choice.finish_reason,
            logprobs=choice.logprobs,
            extra=choice.rest,
            answer_extra={k: v for k, v in read.rest.items() if k not in _NOT_PASSED_ON},
        )
        for index, (choice, share) in enumerate(zip(read.choices, shares, strict=True))
    ]


def reason_of(answer: bytes) -> str:
    """The message of an error, in any of the usual shapes."""
    try:
        read = _ErrorAnswer.model_validate_json(answer)
    except ValidationError:
        return "it gave no reason"
    said = read.error.message if isinstance(read.error, _Error) else read.error or read.message
    return said[:_SHOWN_CHARACTERS] or "it gave no reason"


def retry_after_s(header: str | None) -> float | None:
    """Seconds that a Retry-After header asks for, at most a day; None if it cannot be read."""
    if not header:
        return None
    if _SECONDS.fullmatch(header):
        return min(float(header), _LONGEST_RETRY_AFTER_S)  # of 400 digits float makes infinity
    try:
        at = parsedate_to_datetime(header)
    except (OverflowError, ValueError):
        return None
    at = at if at.tzinfo else at.replace(tzinfo=UTC)
    wait_s = (at - datetime.now(UTC)).total_seconds()
    return min(max(wait_s, 0.0), _LONGEST_RETRY_AFTER_S)


def _message(said: _Said) -> Message:
    calls = tuple(call.to_call() for call in said.tool_calls or ())
    if said.function_call:  # OpenAI's shape before there were tools
        calls += (ToolCall(said.function_call.name, said.function_call.arguments),)
    wire = {name: value for name, value in said.model_dump().items() if value is not None}
    wire["content"] = said.text or (None if calls else "")
    if not said.tool_calls:
        wire.pop("tool_calls", None)
    return Message("assistant", said.text, calls, wire=wire)


def _split(total: int, parts: int) -> Sequence[int]:
    """Split as evenly as possible: the upstream does not state the tokens of each choice."""
    return [(total + k) // parts for k in range(parts)]

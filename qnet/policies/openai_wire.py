"""OpenAI's chat completions as the client of an upstream sees them. Pure."""

import json
from collections.abc import Sequence
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from qnet.types import Candidate, History, Message, Sampling, Spent, ToolCall

_SHOWN_CHARACTERS = 500
_LENGTH = "length"

MaxTokensName = Literal["max_tokens", "max_completion_tokens"]
"""What the longest completion is called; OpenAI's reasoning models take the second alone."""


class _Shape(BaseModel):
    """Of an answer; what else the upstream says is ignored."""

    model_config = ConfigDict(frozen=True)


class _Function(_Shape):
    name: str
    arguments: str = ""


class _FunctionCall(_Shape):
    id: str | None = None
    function: _Function

    def to_call(self) -> ToolCall:
        return ToolCall(self.function.name, self.function.arguments, self.id or "")


class _Custom(_Shape):
    name: str
    input: str = ""


class _CustomCall(_Shape):
    id: str | None = None
    custom: _Custom

    def to_call(self) -> ToolCall:
        return ToolCall(self.custom.name, self.custom.input, self.id or "", "custom")


class _Part(_Shape):
    type: str
    text: str = ""


class _Said(BaseModel):
    model_config = ConfigDict(frozen=True, extra="allow")

    role: str = "assistant"
    content: str | list[_Part] | None = None
    tool_calls: list[_FunctionCall | _CustomCall] | None = None

    @property
    def text(self) -> str:
        """What is said; of parts, those that are text."""
        if isinstance(self.content, list):
            return "".join(part.text for part in self.content if part.type == "text")
        return self.content or ""


class _Choice(_Shape):
    message: _Said
    finish_reason: str | None = None
    logprobs: dict[str, Any] | None = None


class _PromptDetails(_Shape):
    cached_tokens: int | None = None


class _Usage(_Shape):
    prompt_tokens: int = Field(default=0, ge=0)
    completion_tokens: int = Field(default=0, ge=0)
    prompt_tokens_details: _PromptDetails | None = None


class _Answer(_Shape):
    choices: list[_Choice]
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
    """What is sent; settings that are None are left to the upstream."""
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
    """A turn as OpenAI spells it."""
    row: dict[str, Any] = {**message.extra, "role": message.role, "content": message.content}
    if message.tool_calls:
        row["content"] = message.content or None
        row["tool_calls"] = [_wire_call(call) for call in message.tool_calls]
    if message.role == "tool":
        row["tool_call_id"] = message.tool_call_id
    return row


def _wire_call(call: ToolCall) -> dict[str, Any]:
    if call.kind == "custom":
        said = {"name": call.name, "input": call.arguments}
    else:
        said = {"name": call.name, "arguments": call.arguments}
    return {"id": call.id, "type": call.kind, call.kind: said}


def is_object(answer: bytes) -> bool:
    """Whether it is a JSON object, as whatever OpenAI's interface answers is."""
    try:
        return isinstance(json.loads(answer), dict)
    except (ValueError, RecursionError):
        return False


def candidates_of(answer: bytes) -> list[Candidate]:
    """One for each choice; none where the answer is no completion."""
    try:
        read = _Answer.model_validate_json(answer)
    except ValidationError:
        return []
    usage = read.usage or _Usage()
    details = usage.prompt_tokens_details or _PromptDetails()
    spent = Spent(usage.prompt_tokens, usage.completion_tokens, details.cached_tokens or 0)
    shares = _split(usage.completion_tokens, len(read.choices))
    return [
        Candidate(
            message=_message(choice.message),
            completion_tokens=share,
            finished=choice.finish_reason != _LENGTH,
            prompt_tokens=usage.prompt_tokens,
            spent=None if index else spent,
            finish_reason=choice.finish_reason,
            logprobs=choice.logprobs,
        )
        for index, (choice, share) in enumerate(zip(read.choices, shares, strict=True))
    ]


def reason_of(answer: bytes) -> str:
    """The message of an error in any of the shapes that are about."""
    try:
        read = _ErrorAnswer.model_validate_json(answer)
    except ValidationError:
        return "it gave no reason"
    said = read.error.message if isinstance(read.error, _Error) else read.error or read.message
    return said[:_SHOWN_CHARACTERS] or "it gave no reason"


def retry_after_s(header: str | None) -> float | None:
    """Seconds of a Retry-After header; None where it gives a date or nothing."""
    return float(header) if header and header.isascii() and header.isdigit() else None


def _message(said: _Said) -> Message:
    calls = tuple(call.to_call() for call in said.tool_calls or ())
    extra = {name: value for name, value in (said.model_extra or {}).items() if value is not None}
    return Message("assistant", said.text, calls, extra=extra)


def _split(total: int, parts: int) -> Sequence[int]:
    """As even as whole numbers can be: what each choice cost the upstream does not say."""
    return [(total + k) // parts for k in range(parts)]

"""OpenAI's chat completions as the client of an upstream sees them. Pure."""

import json
from collections.abc import Sequence
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from qnet.types import Candidate, History, Message, Sampling, Spent, ToolCall

_SHOWN_CHARACTERS = 500
_LENGTH = "length"
_NOT_PASSED_ON = frozenset(("id", "object", "created", "model"))
"""Of an answer: who guides gives its own."""

MaxTokensName = Literal["max_tokens", "max_completion_tokens"]
"""What the longest completion is called; OpenAI's reasoning models take the second alone."""


class _Shape(BaseModel):
    """A part of an answer; what else stands there is ignored."""

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


class _Open(BaseModel):
    """A part of an answer; what else stands there is passed on."""

    model_config = ConfigDict(frozen=True, extra="allow")

    @property
    def rest(self) -> dict[str, object]:
        """What else stands there."""
        rest = self.model_extra or {}
        return {name: value for name, value in rest.items() if value is not None}


class _Said(_Open):
    role: str = "assistant"
    content: str | list[_Part] | None = None
    tool_calls: list[_FunctionCall | _CustomCall] | None = None

    @property
    def text(self) -> str:
        """What is said; of parts, those that are text."""
        if isinstance(self.content, list):
            return "".join(part.text for part in self.content if part.type == "text")
        return self.content or ""


class _Choice(_Open):
    index: int = 0
    message: _Said
    finish_reason: str | None = None
    logprobs: dict[str, Any] | None = None


class _PromptDetails(_Shape):
    cached_tokens: int | None = None


class _Usage(_Shape):
    prompt_tokens: int = Field(default=0, ge=0)
    completion_tokens: int = Field(default=0, ge=0)
    prompt_tokens_details: _PromptDetails | None = None
    completion_tokens_details: dict[str, int | None] | None = None

    @property
    def spent(self) -> Spent:
        """The same in our words."""
        details = self.prompt_tokens_details or _PromptDetails()
        return Spent(
            self.prompt_tokens,
            self.completion_tokens,
            details.cached_tokens or 0,
            {name: n for name, n in (self.completion_tokens_details or {}).items() if n},
        )


class _Answer(_Open):
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
    return Message("assistant", said.text, calls, extra=said.rest)


def _split(total: int, parts: int) -> Sequence[int]:
    """As even as whole numbers can be: what each choice cost the upstream does not say."""
    return [(total + k) // parts for k in range(parts)]

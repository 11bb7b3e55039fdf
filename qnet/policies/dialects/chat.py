"""OpenAI's chat completions from the client's side: requests written, answers read. Pure."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from pydantic import ValidationError

from qguide.qnet.native import DialectName
from qguide.qnet.openai_messages import (
    CustomCall,
    Function,
    FunctionCall,
    Shape,
    calls_of,
    text_of,
    wire_message,
)
from qguide.qnet.policies.dialects.base import (
    LENGTH,
    Completion,
    Count,
    IgnoringExtras,
    Tokens,
    bearer,
    logprob_of,
    object_in,
    read_as,
)
from qguide.qnet.policies.dialects.chat_chunks import assembled_completion
from qguide.qnet.types import Candidate, History, Message, Sampling
from qguide.qnet.usage import NOTHING, TokenUsage

_NOT_PASSED_ON = frozenset(("id", "object", "created", "model"))
"""Fields of an answer that QGuide's own answer sets itself."""

MaxTokensName = Literal["max_tokens", "max_completion_tokens"]
"""Parameter for the longest completion; OpenAI's reasoning models take only the second."""


@dataclass(frozen=True, slots=True)
class ChatDialect:
    """Chat completions, the dialect of most servers; see `Dialect`.

    Attributes:
        max_tokens_name: the upstream's parameter for the longest completion.
    """

    max_tokens_name: MaxTokensName = "max_tokens"

    name: ClassVar[DialectName] = "chat"
    path: ClassVar[str] = "chat/completions"
    answer: ClassVar[str] = "chat completion"
    takes_n: ClassVar[bool] = True
    as_stream: ClassVar[Mapping[str, Any]] = {
        "stream": True,
        "stream_options": {"include_usage": True},
    }

    def headers(self, api_key: str | None) -> dict[str, str]:
        """The key as a bearer token."""
        return bearer(api_key)

    def request_body(
        self, model: str, history: History, *, n: int, sampling: Sampling
    ) -> dict[str, Any]:
        """Body of a request; see `Dialect`."""
        known = {
            "n": n if n > 1 else None,
            "temperature": sampling.temperature,
            self.max_tokens_name: sampling.max_tokens,
            "seed": sampling.seed,
        }
        return {
            **sampling.parameters,
            "model": model,
            "messages": [wire_message(message) for message in history],
            **{name: value for name, value in known.items() if value is not None},
        }

    def read_answer(self, answer: bytes) -> Completion:
        """Read an upstream's answer; never raises."""
        return read_completion(answer)

    def assembled(self, events: Sequence[Mapping[str, Any]]) -> dict[str, Any] | None:
        """The completion of a stream's chunks; see `Dialect`."""
        return assembled_completion(events)


class _Whole(Shape):
    """A part of an answer that is handed on."""

    @property
    def rest(self) -> dict[str, object]:
        """The fields that the class does not name, but for null ones."""
        rest = self.model_extra or {}
        return {name: value for name, value in rest.items() if value is not None}


class _Logprobs(Shape):
    content: Tokens = None
    refusal: Tokens = None


class _ReplyMessage(_Whole):
    content: str | list[dict[str, Any]] | None = None
    refusal: str | None = None
    tool_calls: list[FunctionCall | CustomCall] | None = None
    function_call: Function | None = None

    @property
    def text(self) -> str:
        """The text; parts of an answer follow each other without a separator."""
        return text_of(self.content, separator="")


class _Choice(_Whole):
    index: int = 0
    message: _ReplyMessage
    finish_reason: str | None = None
    logprobs: _Logprobs | None = None

    @property
    def tokens(self) -> dict[str, Any] | None:
        """The log-probabilities as they came."""
        return None if self.logprobs is None else self.logprobs.model_dump(exclude_unset=True)

    @property
    def content_tokens(self) -> Sequence[dict[str, Any]]:
        """The log-probabilities of its text's tokens; empty if unknown."""
        return (self.logprobs.content if self.logprobs else None) or ()


class _PromptDetails(IgnoringExtras):
    cached_tokens: int | None = None


class _Usage(IgnoringExtras):
    prompt_tokens: Count = 0
    completion_tokens: Count = 0
    prompt_tokens_details: _PromptDetails | None = None
    completion_tokens_details: dict[str, Any] | None = None
    cost: Any = None

    @property
    def spent(self) -> TokenUsage:
        """This usage as a `TokenUsage`; cached tokens are never more than the prompt's."""
        details = self.prompt_tokens_details or _PromptDetails()
        return TokenUsage(
            self.prompt_tokens,
            self.completion_tokens,
            min(max(details.cached_tokens or 0, 0), self.prompt_tokens),
            {
                name: n
                for name, n in (self.completion_tokens_details or {}).items()
                if n and isinstance(n, int)
            },
            cost=_known_cost(self.cost),
        )


def _known_cost(said: Any) -> float | None:
    """Cost of a request as OpenRouter and routers like it tell it; None for anything else."""
    is_number = isinstance(said, int | float) and not isinstance(said, bool)
    return float(said) if is_number and 0 <= said < math.inf else None


class _Answer(_Whole):
    choices: list[_Choice]
    system_fingerprint: str | None = None
    usage: _Usage | None = None


class _UsageOnly(IgnoringExtras):
    usage: _Usage | None = None


def read_completion(answer: bytes) -> Completion:
    """Read an upstream's answer; never raises."""
    said, is_object = object_in(answer)
    if said is None:
        return Completion(is_object=is_object)
    usage = _usage_of(said)
    read = read_as(_Answer, said)
    return Completion(_candidates_of(read) if read else [], usage, is_object=True)


def _usage_of(said: dict[str, Any]) -> TokenUsage:
    try:
        usage = _UsageOnly.model_validate(said).usage
    except (ValidationError, RecursionError):
        return NOTHING
    return usage.spent if usage else NOTHING


def _candidates_of(read: _Answer) -> list[Candidate]:
    usage = read.usage or _Usage()
    shares = _split(usage.completion_tokens, len(read.choices))
    extra = {k: v for k, v in read.rest.items() if k not in _NOT_PASSED_ON}
    if read.system_fingerprint is not None:
        extra["system_fingerprint"] = read.system_fingerprint
    replies = [_message(choice.message) for choice in read.choices]
    return [
        Candidate(
            message=replies[index],
            completion_tokens=share,
            logprob=logprob_of(replies[index], choice.content_tokens),
            finished=choice.finish_reason != LENGTH,
            prompt_tokens=usage.prompt_tokens,
            spent=None if index else usage.spent,
            finish_reason=choice.finish_reason,
            logprobs=choice.tokens,
            extra=choice.rest,
            answer_extra=extra,
        )
        for index, (choice, share) in enumerate(zip(read.choices, shares, strict=True))
    ]


def _message(said: _ReplyMessage) -> Message:
    calls = calls_of(said.tool_calls, said.function_call)
    wire = {name: value for name, value in said.model_dump().items() if value is not None}
    wire["role"] = "assistant"
    wire["content"] = said.text or (None if calls else "")
    if not said.tool_calls:
        wire.pop("tool_calls", None)
    return Message("assistant", said.text, calls, wire=wire)


def _split(total: int, parts: int) -> Sequence[int]:
    """Split as evenly as possible: the upstream does not state the tokens of each choice."""
    return [(total + k) // parts for k in range(parts)]

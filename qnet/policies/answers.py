"""Answers of upstreams: untrusted JSON, read as chat completions or as errors. Pure."""

import json
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Annotated, Any

from pydantic import BeforeValidator, ValidationError

from qguide.qnet.chat_messages import CustomCall, Function, FunctionCall, Shape, calls_of, text_of
from qguide.qnet.dialects.shapes import LENGTH, Count, IgnoringExtras, Tokens, read_as
from qguide.qnet.types import Candidate, Message
from qguide.qnet.work import NOTHING, TokenUsage

_NOT_PASSED_ON = frozenset(("id", "object", "created", "model"))
"""Fields of an answer that QGuide's own answer sets itself."""

_MOST_DIGITS = 300
_LONE_SURROGATE = re.compile("[\ud800-\udfff]")


@dataclass(frozen=True, slots=True)
class Completion:
    """An answer with status 200, as far as it can be read.

    Attributes:
        candidates: one per choice; none if the answer is no completion or is nested too deeply.
        usage: token usage that the answer states, even if the answer is not a completion.
        is_object: True for a JSON object, as every answer of these interfaces is.
    """

    candidates: list[Candidate] = field(default_factory=list)
    usage: TokenUsage = NOTHING
    is_object: bool = False


def loaded(answer: bytes) -> object:
    """Parse JSON into what can be written as JSON again.

    Infinity and NaN become null (the log-probability of an impossible token may be -Infinity), and
    so do numbers of hundreds of digits; a lone surrogate becomes U+FFFD.
    """
    text = answer.decode("utf-8-sig", "replace")
    read: object = json.loads(text, parse_constant=lambda _: None, parse_float=_finite, parse_int=_whole)
    return _without_lone_surrogates(read) if "\\ud" in text.lower() else read


def object_in(answer: bytes) -> tuple[dict[str, Any] | None, bool]:
    """The JSON object of an answer, and whether it seems to be one although it cannot be read."""
    try:
        said = loaded(answer)
    except RecursionError:
        return None, answer.lstrip().startswith(b"{")
    except ValueError:
        return None, False
    return (said, True) if isinstance(said, dict) else (None, False)


def _finite(digits: str) -> float | None:
    number = float(digits)
    return number if math.isfinite(number) else None


def _whole(digits: str) -> int | None:
    return int(digits) if len(digits) <= _MOST_DIGITS else None


def _without_lone_surrogates(value: Any) -> Any:
    """Replace lone surrogates, which JSON can spell and UTF-8 cannot."""
    if isinstance(value, str):
        return _LONE_SURROGATE.sub("\ufffd", value)
    if isinstance(value, list):
        return [_without_lone_surrogates(part) for part in value]
    if isinstance(value, dict):
        return {_without_lone_surrogates(name): _without_lone_surrogates(part) for name, part in value.items()}
    return value


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
    cache_write_tokens: int | None = None


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
        cached = min(max(details.cached_tokens or 0, 0), self.prompt_tokens)
        return TokenUsage(
            self.prompt_tokens,
            self.completion_tokens,
            cached,
            {name: n for name, n in (self.completion_tokens_details or {}).items() if n and isinstance(n, int)},
            cost=_known_cost(self.cost),
            written_tokens=min(max(details.cache_write_tokens or 0, 0), self.prompt_tokens - cached),
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


def read_completion(said: dict[str, Any]) -> Completion:
    """Read a completion; never raises."""
    usage = usage_of(said)
    read = read_as(_Answer, said)
    return Completion(_candidates_of(read) if read else [], usage, is_object=True)


def usage_of(said: dict[str, Any]) -> TokenUsage:
    """The usage that an answer states; nothing if it states none that can be read."""
    try:
        usage = _UsageOnly.model_validate(said).usage
    except (ValidationError, RecursionError):
        return NOTHING
    return usage.spent if usage else NOTHING


def _candidates_of(read: _Answer) -> list[Candidate]:
    usage = read.usage or _Usage()
    # As evenly as possible: the upstream does not state the tokens of each choice.
    shares = [(usage.completion_tokens + k) // len(read.choices) for k in range(len(read.choices))]
    extra = {k: v for k, v in read.rest.items() if k not in _NOT_PASSED_ON}
    if read.system_fingerprint is not None:
        extra["system_fingerprint"] = read.system_fingerprint
    replies = [_message(choice.message) for choice in read.choices]
    return [
        Candidate(
            message=replies[index],
            completion_tokens=share,
            logprob=_logprob_of(replies[index], choice.content_tokens),
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
    wire["content"] = said.text or (None if calls or said.refusal else "")
    if not said.tool_calls:
        wire.pop("tool_calls", None)
    return Message("assistant", said.text or said.refusal or "", calls, wire=wire)


def cut_at(candidate: Candidate, stop: object) -> Candidate:
    """The candidate up to the first of the texts `stop`, as an upstream that knows them ends it.

    The log-probability of what is left is unknown.
    """
    texts = stop if isinstance(stop, list) else [stop]
    content = candidate.message.content
    found = [(content.index(text), text) for text in texts if isinstance(text, str) and text and text in content]
    if not found:
        return candidate
    end, text = min(found)
    wire = {k: v for k, v in (candidate.message.wire or {}).items() if k not in ("tool_calls", "refusal")}
    return replace(
        candidate,
        message=Message("assistant", content[:end], wire=wire | {"content": content[:end]}),
        logprob=None,
        logprobs=None,
        finished=True,
        finish_reason="stop",
        extra={**candidate.extra, "stop_reason": text},
        native=None,
    )


def _logprob_of(message: Message, tokens: Sequence[dict[str, Any]]) -> float | None:
    """Log-likelihood of a reply by those of its text's tokens; None if it is not known whole.

    Upstreams state none of tool calls.
    """
    logprobs = [token.get("logprob") for token in tokens]
    known = [log for log in logprobs if isinstance(log, int | float) and math.isfinite(log)]
    if message.tool_calls or not known or len(known) < len(logprobs):
        return None
    return math.fsum(known)


CONTEXT_CODE = "context_length_exceeded"
_SHOWN_CHARACTERS = 500
_SECONDS = re.compile(r"[0-9]+(\.[0-9]+)?")
_LONGEST_RETRY_AFTER_S = 86_400.0
_ERROR_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_.-]{0,63}")
_TOO_LONG_KIND = "request_too_large"
_TOO_LONG = (
    "context length",
    "context window",
    "prompt is too long",
    "input is too long",
    "available context size",
    "maximum number of tokens allowed",
    "maximum model length",
    "maximum prompt length",
    "reduce the length of the messages",
    "too large for model with",
    "tokens in request more than max tokens allowed",
)
"""Words of OpenAI and SGLang (the first two), Anthropic, Bedrock, llama.cpp, Gemini, vLLM, xAI,
Groq, Mistral and Ark; few of them send a code."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """An upstream's error, in any of the usual shapes."""

    reason: str = "it gave no reason"
    code: str = ""
    kind: str = ""
    parameter: str | None = None

    @property
    def exceeds_context(self) -> bool:
        """True if the history is longer than the model takes, by code, type or message."""
        said = self.reason.lower()
        told = self.code == CONTEXT_CODE or self.kind == _TOO_LONG_KIND
        return told or any(words in said for words in _TOO_LONG)


def _name_or_nothing(given: object) -> str:
    """A code or type that callers may see; "" for anything else, such as a status in its place."""
    return given if isinstance(given, str) and _ERROR_NAME.fullmatch(given) else ""


_Name = Annotated[str, BeforeValidator(_name_or_nothing)]
_Text = Annotated[str, BeforeValidator(lambda given: given if isinstance(given, str) else "")]


class _Error(IgnoringExtras):
    message: _Text = ""
    code: _Name = ""
    type: _Name = ""
    status: _Name = ""
    param: _Text = ""


class _ErrorAnswer(IgnoringExtras):
    error: _Error | str | None = None
    message: _Text = ""


def read_refusal(answer: bytes) -> Refusal:
    """Read the body of an error, OpenAI's or Anthropic's; never raises."""
    try:
        read = _ErrorAnswer.model_validate_json(answer)
    except ValidationError:
        return Refusal()
    error = read.error
    if not isinstance(error, _Error):
        error = _Error(message=error or read.message)
    reason = (error.message or read.message)[:_SHOWN_CHARACTERS] or Refusal().reason
    return Refusal(reason, error.code, error.type or error.status, error.param[:_SHOWN_CHARACTERS] or None)


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

"""The protocol of a dialect, and what all of them share: reading JSON, errors, usage."""

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Annotated, Any, ClassVar, Protocol, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from qguide.qnet.errors import UnsupportedParameterError
from qguide.qnet.native import DialectName
from qguide.qnet.support.json_depth import exceeds_max_depth
from qguide.qnet.types import Candidate, History, Message, Sampling
from qguide.qnet.usage import NOTHING, TokenUsage

CONTEXT_CODE = "context_length_exceeded"
LENGTH = "length"
CHATS_ALONE = frozenset(
    (
        "audio",
        "frequency_penalty",
        "function_call",
        "functions",
        "logit_bias",
        "modalities",
        "presence_penalty",
    )
)
"""Parameters of chat completions that neither other dialect knows, and that change an answer."""

Read = TypeVar("Read", bound=BaseModel)

_SHOWN_CHARACTERS = 500
_MOST_DIGITS = 300
_LONE_SURROGATE = re.compile("[\ud800-\udfff]")
_SECONDS = re.compile(r"[0-9]+(\.[0-9]+)?")
_LONGEST_RETRY_AFTER_S = 86_400.0
_ERROR_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_.-]{0,63}")
_TOO_LONG = (
    "context length",
    "context window",
    "prompt is too long",
    "available context size",
    "maximum number of tokens allowed",
)
"""Words of OpenAI, vLLM and SGLang, of Anthropic, llama.cpp and Gemini; few of them send a code."""
_NEUTRAL: tuple[object, ...] = (False, 0, "", [], {})


class IgnoringExtras(BaseModel):
    """A part of an answer; fields that it does not name are ignored."""

    model_config = ConfigDict(frozen=True)


Count = Annotated[int, Field(ge=0), BeforeValidator(lambda count: count or 0)]
Said = Annotated[str, BeforeValidator(lambda said: "" if said is None else said)]
"""A text that may be null; any other value is no answer of the dialect."""
Tokens = list[dict[str, Any]] | None
"""Log-probabilities, one row per token."""


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


class Dialect(Protocol):
    """Form of the requests to an upstream and of its answers.

    Attributes:
        path: of requests, below the upstream's base URL.
        answer: name of an answer, for errors.
        takes_n: False if a request draws one candidate.
        as_stream: fields of a request whose answer is to be a stream.
    """

    name: ClassVar[DialectName]
    path: ClassVar[str]
    answer: ClassVar[str]
    takes_n: ClassVar[bool]
    as_stream: ClassVar[Mapping[str, Any]]

    def headers(self, api_key: str | None) -> dict[str, str]:
        """Headers of every request."""
        ...

    def request_body(
        self, model: str, history: History, *, n: int, sampling: Sampling
    ) -> dict[str, Any]:
        """Body of a request; settings that are None are left to the upstream.

        Raises:
            InvalidRequestError: the dialect cannot say something in the history.
            UnsupportedParameterError: the dialect has no such parameter.
        """
        ...

    def read_answer(self, answer: bytes) -> Completion:
        """Read an answer with status 200; never raises."""
        ...

    def assembled(self, events: Sequence[Mapping[str, Any]]) -> dict[str, Any] | None:
        """The answer that a stream's events add up to; None if they do not come to its end.

        Never raises: what is malformed is left out, and then no answer.
        """
        ...


def bearer(api_key: str | None) -> dict[str, str]:
    """The key as OpenAI's servers take it."""
    return {"Authorization": f"Bearer {api_key}"} if api_key else {}


def native_body(
    dialect: DialectName, history: History, sampling: Sampling
) -> dict[str, Any] | None:
    """The caller's own body, if it is in this dialect and this history is the one it was read as.

    A paraphrase or a remark about poor candidates makes another history, which is translated.
    """
    native = sampling.native
    if native is None or native.dialect != dialect or native.history is not history:
        return None
    return dict(native.body)


def passed_on(
    parameters: Mapping[str, object],
    dialect: DialectName,
    *,
    without_effect: frozenset[str],
    unknown: frozenset[str],
) -> dict[str, Any]:
    """A chat completion's parameters, without those that say nothing in this dialect.

    Args:
        without_effect: names that the dialect does not know and that may be left out.
        unknown: names that it does not know and that would change the answer.
    """
    given = {k: v for k, v in parameters.items() if v is not None and k not in without_effect}
    for name in sorted(unknown & given.keys()):
        if given.pop(name) not in _NEUTRAL:
            raise UnsupportedParameterError(
                f"the upstream is asked in the dialect {dialect!r}, which has no {name!r}; leave "
                "the parameter out or choose another policy",
                parameter=name,
            )
    return given


def loaded(answer: bytes) -> object:
    """Parse JSON into what can be written as JSON again.

    Infinity and NaN become null (the log-probability of an impossible token may be -Infinity), and
    so do numbers of hundreds of digits; a lone surrogate becomes U+FFFD.
    """
    text = answer.decode("utf-8-sig", "replace")
    read: object = json.loads(
        text, parse_constant=lambda _: None, parse_float=_finite, parse_int=_whole
    )
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


def read_as(kind: type[Read], said: dict[str, Any]) -> Read | None:
    """The answer as `kind`; None if it is not one or is nested too deeply."""
    try:
        read = kind.model_validate(said)
    except (ValidationError, RecursionError):
        return None
    return None if exceeds_max_depth(said) else read


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
        return {
            _without_lone_surrogates(name): _without_lone_surrogates(part)
            for name, part in value.items()
        }
    return value


@dataclass(frozen=True, slots=True)
class Refusal:
    """An upstream's error, in any of the usual shapes.

    Attributes:
        reason: its message.
        code, kind: its code and its type; "" if it gave none.
        parameter: the invalid field; None if it names none.
    """

    reason: str = "it gave no reason"
    code: str = ""
    kind: str = ""
    parameter: str | None = None

    @property
    def exceeds_context(self) -> bool:
        """True if the history is longer than the model's context, by the code or the message."""
        said = self.reason.lower()
        return self.code == CONTEXT_CODE or any(words in said for words in _TOO_LONG)


def _name_or_nothing(given: object) -> str:
    """A code or type that callers may see; "" for anything else, such as a status in its place."""
    return given if isinstance(given, str) and _ERROR_NAME.fullmatch(given) else ""


_Name = Annotated[str, BeforeValidator(_name_or_nothing)]
_Text = Annotated[str, BeforeValidator(lambda given: given if isinstance(given, str) else "")]


class _Error(IgnoringExtras):
    message: _Text = ""
    code: _Name = ""
    type: _Name = ""
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
    return Refusal(reason, error.code, error.type, error.param[:_SHOWN_CHARACTERS] or None)


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


def logprob_of(message: Message, tokens: Sequence[Mapping[str, Any]]) -> float | None:
    """Log-likelihood of a reply by those of its text's tokens; None if it is not known whole.

    Upstreams state none of tool calls.
    """
    logprobs = [token.get("logprob") for token in tokens]
    known = [log for log in logprobs if isinstance(log, int | float) and math.isfinite(log)]
    if message.tool_calls or not known or len(known) < len(logprobs):
        return None
    return math.fsum(known)

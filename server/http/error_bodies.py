"""Errors in whatever format, and their bodies in ours and in OpenAI's; other dialects have theirs. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

_CONTEXT: Final = "context_length_exceeded"
HISTORY_TOO_LONG: Final = "history_too_long"
OPENAI_CODES: Final = {
    "unknown_model": "model_not_found",
    HISTORY_TOO_LONG: _CONTEXT,
    "unauthorized": "invalid_api_key",
    "rate_limited": "rate_limit_exceeded",
    "too_many_at_once": "rate_limit_exceeded",
    "tokens_used_up": "insufficient_quota",
    "upstream_busy": "rate_limit_exceeded",
}
"""Our codes for which OpenAI has a code of its own that clients check."""
_OPENAI_TYPES: Final = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error"}
_OPENAI_TOO_LONG: Final = (
    "the prompt is too long: it exceeds the context window, because this model's maximum context length is smaller"
)
"""Clients know the error by its words: LiteLLM and CrewAI by "this model's maximum context length is", LangChain by
"prompt is too long" and, in a stream, by "exceeds the context window"."""


@dataclass(frozen=True, slots=True)
class Failure:
    """An error, whatever the format in which it is told."""

    status: int
    code: str
    message: str
    request_id: str = ""
    param: str | None = None
    figures: Mapping[str, object] | None = None
    # upstream_code, upstream_type: the upstream's own; "" where it gave none
    upstream_code: str = ""
    upstream_type: str = ""

    @property
    def qguide(self) -> dict[str, object]:
        """The figures as a field of our own; none without any."""
        return {} if self.figures is None else {"qguide": dict(self.figures)}


Told = tuple[int, dict[str, Any]]
"""Status and body, or detail, of an error."""


def own_error(failure: Failure) -> Told:
    """An error in our format."""
    return _told(failure.status, {"code": failure.code, "message": failure.message}, failure)


def openai_error(failure: Failure) -> Told:
    """An error in OpenAI's format."""
    return _told(*openai_detail(failure), failure)


def _told(status: int, detail: Mapping[str, Any], failure: Failure) -> Told:
    return status, {"error": {**detail, "request_id": failure.request_id, **failure.qguide}}


def openai_detail(failure: Failure) -> Told:
    """Status and detail of an error in OpenAI's format."""
    status, message = failure.status, failure.message
    kind = _OPENAI_TYPES.get(status, "server_error" if status >= 500 else "invalid_request_error")
    code = failure.upstream_code or OPENAI_CODES.get(failure.code, failure.code)
    if code == _CONTEXT:
        message = f"{_OPENAI_TOO_LONG}: {message}"
    detail = {"message": message, "type": failure.upstream_type or kind, "param": failure.param, "code": code}
    return status, detail

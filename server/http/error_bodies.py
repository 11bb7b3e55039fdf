"""Error bodies in the formats of OpenAI, Anthropic, Google and Ollama, for their routes. Pure."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

_OPENAI_PATHS: Final = ("/v1/chat/completions", "/v1/completions", "/v1/responses")
_A_MODEL: Final = "/v1/models/"
_STORED: Final = ("/v1/responses/", "/v1/conversations")
_CONTEXT: Final = "context_length_exceeded"
_HISTORY_TOO_LONG: Final = "history_too_long"
OPENAI_CODES: Final = {
    "unknown_model": "model_not_found",
    _HISTORY_TOO_LONG: _CONTEXT,
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


def told(failure: Failure, method: str, path: str, *, unrouted: bool) -> Told:
    """An error in the format that the clients of a route expect; elsewhere a malformed body is a 400."""
    others = replace(failure, status=400) if failure.status == 422 else failure
    if speaks_anthropic(path):
        return _anthropic(others)
    if _GEMINI_PATHS.fullmatch(path):
        return _gemini(others)
    if path.startswith("/api/"):  # Ollama's
        return others.status, {"error": failure.message}
    status, detail = failure.status, {"code": failure.code, "message": failure.message}
    of_openai = path in _OPENAI_PATHS or path.startswith(_STORED) or (method == "GET" and path.startswith(_A_MODEL))
    if unrouted or of_openai:
        status, detail = openai_detail(others)
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


OVERLOADED: Final = 529
"""Anthropic's status for a service that takes no more requests now."""

_ANTHROPIC_PATHS: Final = ("/v1/messages", "/v1/messages/count_tokens")
_ANTHROPIC_TYPES: Final = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    408: "timeout_error",
    409: "conflict_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
    OVERLOADED: "overloaded_error",
}
_OVERLOADED_CODES: Final = ("overloaded", "upstream_unavailable")
_OWN_CODES: Final = {"thread": "thread_unsupported_request"}
"""Anthropic's codes of parameters that are not supported: without threads, its SDK's tool runner sends whole
conversations."""


def speaks_anthropic(path: str) -> bool:
    """True for the routes whose clients expect Anthropic's error format."""
    return path in _ANTHROPIC_PATHS


def _anthropic(failure: Failure) -> Told:
    """Our code is in `details`, where the SDK reads it as `error_code`, with the figures.

    A history that is too long says so in the words by which Claude Code recognises it.
    """
    status = OVERLOADED if failure.code in _OVERLOADED_CODES else failure.status
    kind = _ANTHROPIC_TYPES.get(status, "api_error" if status >= 500 else "invalid_request_error")
    too_long = "prompt is too long: " if failure.code == _HISTORY_TOO_LONG else ""
    details = {"error_code": _OWN_CODES.get(failure.param or "", failure.code), **failure.qguide}
    detail = {"type": kind, "message": too_long + failure.message, "details": details}
    return status, {"type": "error", "error": detail, "request_id": failure.request_id}


_METHODS: Final = "generateContent|streamGenerateContent|countTokens"
_GEMINI_PATHS: Final = re.compile(rf"/v1beta/.*|/v1/models/.*:({_METHODS})", re.DOTALL)
_GEMINI_STATUSES: Final = {
    401: "UNAUTHENTICATED",
    403: "PERMISSION_DENIED",
    404: "NOT_FOUND",
    408: "DEADLINE_EXCEEDED",
    409: "ABORTED",
    429: "RESOURCE_EXHAUSTED",
    500: "INTERNAL",
    504: "DEADLINE_EXCEEDED",
}


def _gemini(failure: Failure) -> Told:
    """Our code is the reason in `details`, with the figures as texts beside the request's id."""
    status, message = failure.status, failure.message
    kind = _GEMINI_STATUSES.get(status, "UNAVAILABLE" if status >= 500 else "INVALID_ARGUMENT")
    if failure.code == _HISTORY_TOO_LONG:
        message = f"The input token count exceeds the maximum number of tokens allowed: {message}"
    figures = {name: str(figure) for name, figure in (failure.figures or {}).items()}
    reason = {
        "@type": "type.googleapis.com/google.rpc.ErrorInfo",
        "reason": failure.code,
        "domain": "qguide",
        "metadata": {"request_id": failure.request_id} | figures,
    }
    return status, {"error": {"code": status, "message": message, "status": kind, "details": [reason]}}

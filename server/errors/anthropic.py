"""Error bodies in Anthropic's format, for the routes that Anthropic's clients call. Pure."""

from collections.abc import Mapping
from typing import Any, Final

OVERLOADED: Final = 529
"""Anthropic's status for a service that takes no more requests now."""
REQUEST_ID_HEADER: Final = "Request-ID"
"""Header in which Anthropic's clients look for the request's id."""

_PATHS: Final = ("/v1/messages", "/v1/messages/count_tokens")
_TYPES: Final = {
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
_TOO_LONG: Final = "history_too_long"
_OWN_CODES: Final = {"thread": "thread_unsupported_request"}
"""Anthropic's codes of parameters that are not supported: without threads, its SDK's tool runner
sends whole conversations."""


def speaks_anthropic(path: str) -> bool:
    """True for the routes whose clients expect Anthropic's error format."""
    return path in _PATHS


def anthropic_body(
    status: int,
    code: str,
    message: str,
    request_id: str,
    figures: Mapping[str, object] | None = None,
    param: str | None = None,
) -> tuple[int, dict[str, Any]]:
    """Status and body of an error in Anthropic's format, where a malformed body is a 400.

    Our code is in `details`, where the SDK reads it as `error_code`, with the figures. A history
    that is too long says so in the words by which Claude Code recognises it.
    """
    status = 400 if status == 422 else status
    if code in _OVERLOADED_CODES:
        status = OVERLOADED
    kind = _TYPES.get(status, "api_error" if status >= 500 else "invalid_request_error")
    if code == _TOO_LONG:
        message = f"prompt is too long: {message}"
    details = {"error_code": _OWN_CODES.get(param or "", code)} | (
        {} if figures is None else {"qguide": dict(figures)}
    )
    detail = {"type": kind, "message": message, "details": details}
    return status, {"type": "error", "error": detail, "request_id": request_id}

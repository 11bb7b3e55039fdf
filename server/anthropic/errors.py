"""Errors of the Messages API."""

from typing import Final, Literal

from pydantic import BaseModel, Field

from qguide.server.http.error_bodies import HISTORY_TOO_LONG, Failure, Told
from qguide.server.own_bodies.answers import StoppedField

OVERLOADED: Final = 529
"""Anthropic's status for a service that takes no more requests now."""

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
_OWN_CODES: Final = {"thread": "thread_unsupported_request"}
"""Anthropic's codes of parameters that are not supported: without threads, its SDK's tool runner sends whole
conversations."""


class ErrorDetails(BaseModel):
    """Details of an error, for programs."""

    error_code: str = Field(description="QGuide's code of the error")
    qguide: StoppedField = None


class AnthropicErrorDetail(BaseModel):
    """Anthropic's error object."""

    type: str
    message: str
    details: ErrorDetails


class AnthropicErrorBody(BaseModel):
    """Error response of this route."""

    type: Literal["error"]
    error: AnthropicErrorDetail
    request_id: str


def error_of(failure: Failure) -> Told:
    """An error in this format; our code is in `details`, where the SDK reads it as `error_code`, with the figures.

    A history that is too long says so in the words by which Claude Code recognises it.
    """
    status = OVERLOADED if failure.code in _OVERLOADED_CODES else failure.status
    kind = _TYPES.get(status, "api_error" if status >= 500 else "invalid_request_error")
    too_long = "prompt is too long: " if failure.code == HISTORY_TOO_LONG else ""
    details = {"error_code": _OWN_CODES.get(failure.param or "", failure.code), **failure.qguide}
    detail = {"type": kind, "message": too_long + failure.message, "details": details}
    return status, {"type": "error", "error": detail, "request_id": failure.request_id}

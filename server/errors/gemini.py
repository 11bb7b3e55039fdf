"""Error bodies in Google's format, for the routes that Gemini's clients call. Pure."""

import re
from collections.abc import Mapping
from typing import Any, Final

_METHODS: Final = "generateContent|streamGenerateContent|countTokens"
_PATHS: Final = re.compile(rf"/v1beta/.*|/v1/models/.*:({_METHODS})", re.DOTALL)
_STATUSES: Final = {
    401: "UNAUTHENTICATED",
    403: "PERMISSION_DENIED",
    404: "NOT_FOUND",
    408: "DEADLINE_EXCEEDED",
    409: "ABORTED",
    429: "RESOURCE_EXHAUSTED",
    500: "INTERNAL",
    504: "DEADLINE_EXCEEDED",
}
_TOO_LONG: Final = "history_too_long"


def speaks_gemini(path: str) -> bool:
    """True for the routes whose clients expect Google's error format."""
    return _PATHS.fullmatch(path) is not None


def gemini_body(
    status: int,
    code: str,
    message: str,
    request_id: str,
    figures: Mapping[str, object] | None = None,
) -> tuple[int, dict[str, Any]]:
    """Status and body of an error in Google's format, where a malformed body is a 400.

    Our code is the reason in `details`, with the figures as texts beside the request's id.
    """
    status = 400 if status == 422 else status
    kind = _STATUSES.get(status, "UNAVAILABLE" if status >= 500 else "INVALID_ARGUMENT")
    if code == _TOO_LONG:
        message = f"The input token count exceeds the maximum number of tokens allowed: {message}"
    reason = {
        "@type": "type.googleapis.com/google.rpc.ErrorInfo",
        "reason": code,
        "domain": "qguide",
        "metadata": {"request_id": request_id}
        | {name: str(figure) for name, figure in (figures or {}).items()},
    }
    detail = {"code": status, "message": message, "status": kind, "details": [reason]}
    return status, {"error": detail}

"""Error bodies in OpenAI's format, for the routes that OpenAI clients call. Pure."""

from typing import Any, Final

_PATHS: Final = ("/v1/chat/completions", "/v1/responses")
_CODES: Final = {
    "unknown_model": "model_not_found",
    "history_too_long": "context_length_exceeded",
}
"""Our codes for which OpenAI has a code of its own that clients check."""
_TYPES: Final = {
    401: "authentication_error",
    403: "permission_error",
    429: "rate_limit_error",
}


def speaks_openai(path: str) -> bool:
    """True for the routes whose clients expect OpenAI's error format."""
    return path in _PATHS


def openai_detail(
    status: int, code: str, message: str, param: str | None
) -> tuple[int, dict[str, Any]]:
    """Status and detail of an error in OpenAI's format, where a malformed body is a 400."""
    status = 400 if status == 422 else status
    kind = _TYPES.get(status, "server_error" if status >= 500 else "invalid_request_error")
    detail = {"message": message, "type": kind, "param": param, "code": _CODES.get(code, code)}
    return status, detail

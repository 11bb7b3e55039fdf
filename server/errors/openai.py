"""Error bodies in OpenAI's format, for the routes that OpenAI clients call. Pure."""

from dataclasses import dataclass
from typing import Any, Final

_PATHS: Final = ("/v1/chat/completions", "/v1/completions", "/v1/responses")
_A_MODEL: Final = "/v1/models/"
_STORED: Final = ("/v1/responses/", "/v1/conversations")
_CONTEXT: Final = "context_length_exceeded"
OPENAI_CODES: Final = {
    "unknown_model": "model_not_found",
    "history_too_long": _CONTEXT,
    "unauthorized": "invalid_api_key",
    "rate_limited": "rate_limit_exceeded",
    "too_many_at_once": "rate_limit_exceeded",
    "tokens_used_up": "insufficient_quota",
    "upstream_busy": "rate_limit_exceeded",
}
"""Our codes for which OpenAI has a code of its own that clients check."""
_TYPES: Final = {
    401: "authentication_error",
    403: "permission_error",
    429: "rate_limit_error",
}
_TOO_LONG: Final = (
    "the prompt is too long: it exceeds the context window, because this model's maximum context "
    "length is smaller"
)
"""Clients know the error by its words: LiteLLM and CrewAI by "this model's maximum context length
is", LangChain by "prompt is too long" and, in a stream, by "exceeds the context window"."""


@dataclass(frozen=True, slots=True)
class UpstreamWords:
    """An upstream's own code and type of an error; "" where it gave none."""

    code: str = ""
    kind: str = ""


NO_WORDS: Final = UpstreamWords()


def speaks_openai(method: str, path: str) -> bool:
    """True for the routes whose clients expect OpenAI's error format."""
    return (
        path in _PATHS
        or path.startswith(_STORED)
        or (method == "GET" and path.startswith(_A_MODEL))
    )


def openai_detail(
    status: int, code: str, message: str, param: str | None, upstream: UpstreamWords = NO_WORDS
) -> tuple[int, dict[str, Any]]:
    """Status and detail of an error in OpenAI's format, where a malformed body is a 400."""
    status = 400 if status == 422 else status
    kind = _TYPES.get(status, "server_error" if status >= 500 else "invalid_request_error")
    code = upstream.code or OPENAI_CODES.get(code, code)
    if code == _CONTEXT:
        message = f"{_TOO_LONG}: {message}"
    detail = {"message": message, "type": upstream.kind or kind, "param": param, "code": code}
    return status, detail

"""Error bodies in the formats of OpenAI, Anthropic, Google and Ollama, for their routes. Pure."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

_OPENAI_PATHS: Final = ("/v1/chat/completions", "/v1/completions", "/v1/responses")
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
_OPENAI_TYPES: Final = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error"}
_HISTORY_TOO_LONG: Final = "history_too_long"
_OPENAI_TOO_LONG: Final = (
    "the prompt is too long: it exceeds the context window, because this model's maximum context length is smaller"
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
    return path in _OPENAI_PATHS or path.startswith(_STORED) or (method == "GET" and path.startswith(_A_MODEL))


def openai_detail(
    status: int, code: str, message: str, param: str | None, upstream: UpstreamWords = NO_WORDS
) -> tuple[int, dict[str, Any]]:
    """Status and detail of an error in OpenAI's format, where a malformed body is a 400."""
    status = 400 if status == 422 else status
    kind = _OPENAI_TYPES.get(status, "server_error" if status >= 500 else "invalid_request_error")
    code = upstream.code or OPENAI_CODES.get(code, code)
    if code == _CONTEXT:
        message = f"{_OPENAI_TOO_LONG}: {message}"
    detail = {"message": message, "type": upstream.kind or kind, "param": param, "code": code}
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
"""Anthropic's codes of parameters that are not supported: without threads, its SDK's tool runner
sends whole conversations."""


def speaks_anthropic(path: str) -> bool:
    """True for the routes whose clients expect Anthropic's error format."""
    return path in _ANTHROPIC_PATHS


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
    kind = _ANTHROPIC_TYPES.get(status, "api_error" if status >= 500 else "invalid_request_error")
    if code == _HISTORY_TOO_LONG:
        message = f"prompt is too long: {message}"
    details = {"error_code": _OWN_CODES.get(param or "", code)} | ({} if figures is None else {"qguide": dict(figures)})
    detail = {"type": kind, "message": message, "details": details}
    return status, {"type": "error", "error": detail, "request_id": request_id}


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


def speaks_gemini(path: str) -> bool:
    """True for the routes whose clients expect Google's error format."""
    return _GEMINI_PATHS.fullmatch(path) is not None


def gemini_body(
    status: int, code: str, message: str, request_id: str, figures: Mapping[str, object] | None = None
) -> tuple[int, dict[str, Any]]:
    """Status and body of an error in Google's format, where a malformed body is a 400.

    Our code is the reason in `details`, with the figures as texts beside the request's id.
    """
    status = 400 if status == 422 else status
    kind = _GEMINI_STATUSES.get(status, "UNAVAILABLE" if status >= 500 else "INVALID_ARGUMENT")
    if code == _HISTORY_TOO_LONG:
        message = f"The input token count exceeds the maximum number of tokens allowed: {message}"
    reason = {
        "@type": "type.googleapis.com/google.rpc.ErrorInfo",
        "reason": code,
        "domain": "qguide",
        "metadata": {"request_id": request_id} | {name: str(figure) for name, figure in (figures or {}).items()},
    }
    detail = {"code": status, "message": message, "status": kind, "details": [reason]}
    return status, {"error": detail}


def speaks_ollama(path: str) -> bool:
    """True for the routes whose clients expect Ollama's error format."""
    return path.startswith("/api/")


def ollama_body(status: int, message: str) -> tuple[int, dict[str, Any]]:
    """Status and body of an error in Ollama's format, where a malformed body is a 400."""
    return 400 if status == 422 else status, {"error": message}

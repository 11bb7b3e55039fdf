"""The table from error classes to HTTP statuses, and the handlers that apply it."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import ceil, inf
from typing import Any

import structlog
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from qguide.qnet import errors
from qguide.qnet.errors import JudgeBudgetError, JudgeBusyError, QGuideError
from qguide.server.http import errors as own
from qguide.server.http.dialect_routes import DialectRoutes
from qguide.server.http.error_bodies import Failure, openai_error, own_error
from qguide.server.http.errors import OverLimitError
from qguide.server.settings.settings import Settings

STATUSES = (400, 401, 403, 404, 408, 409, 413, 422, 429, 431, 500, 502, 503, 504)
"""Every status that an error response can have."""
RETRY_AFTER_S = 1

TABLE: dict[type[QGuideError], tuple[int, str]] = {
    errors.UnknownModelError: (404, "unknown_model"),
    own.UnknownResponseError: (404, "unknown_response"),
    errors.UnknownEpisodeError: (404, "unknown_episode"),
    errors.EpisodeClosedError: (409, "episode_closed"),
    errors.EpisodeFullError: (400, "episode_full"),
    errors.HistoryTooLongError: (400, "history_too_long"),
    errors.InvalidCandidatesError: (400, "invalid_candidates"),
    errors.MalformedHistoryError: (400, "malformed_history"),
    errors.UnsupportedParameterError: (400, "unsupported_parameter"),
    errors.UpstreamRefusedError: (400, "upstream_refused"),
    own.PreviousResponseError: (400, "previous_response_not_found"),
    errors.InvalidRequestError: (400, "invalid_request"),
    errors.RenderingError: (400, "rendering_failed"),
    errors.CheckpointError: (400, "checkpoint_refused"),
    errors.ConfigError: (409, "config_refused"),
    errors.RoutingError: (409, "routing_refused"),
    errors.OverloadedError: (503, "overloaded"),
    errors.JudgeBudgetError: (503, "judge_budget"),
    errors.JudgeBusyError: (503, "judge_busy"),
    errors.JudgeRefusedError: (502, "judge_refused"),
    errors.JudgeAnswerError: (502, "judge_unreadable"),
    errors.DeadlineExceededError: (503, "deadline_exceeded"),
    errors.ScorerUnavailableError: (503, "scorer_unavailable"),
    errors.UpstreamTimeoutError: (504, "upstream_timeout"),
    errors.UpstreamUnknownModelError: (404, "upstream_unknown_model"),
    errors.UpstreamBusyError: (429, "upstream_busy"),
    errors.UpstreamUnavailableError: (503, "upstream_unavailable"),
    errors.UpstreamError: (502, "upstream_failed"),
    errors.EnvironmentFailureError: (502, "environment_failed"),
    own.UntrustedHostError: (403, "untrusted_host"),
    own.UnauthorizedError: (401, "unauthorized"),
    own.ForbiddenError: (403, "forbidden"),
    own.BodyTimeoutError: (408, "request_timeout"),
    own.BodyTooLargeError: (413, "body_too_large"),
    own.MalformedBodyError: (422, "malformed_body"),
    own.OverLimitError: (429, "rate_limited"),
    own.DrainingError: (503, "draining"),
    own.BelowThresholdError: (400, "below_threshold"),  # a status that no client's library repeats
}
"""Status and code by error class, subclasses before their base classes."""

HTTP_CODES = {404: "not_found", 405: "method_not_allowed", 426: "websocket_unsupported"}
_API = ("/v1/", "/v1beta/")
_UNROUTED = "Not Found"  # the framework's, where no route has the path
_SHOWN_CHARACTERS = 40
_SHOWN_PATH = 100

_log = structlog.get_logger(__name__)


def install_error_handlers(app: FastAPI, dialects: Sequence[DialectRoutes]) -> None:
    """Answer every error in the format of its path's dialect, or else in ours, without internals."""
    app.state.dialects = dialects
    app.add_exception_handler(QGuideError, _known)
    app.add_exception_handler(RequestValidationError, _malformed)
    app.add_exception_handler(HTTPException, _http)


def _response(
    request: Request, failure: Failure, *, retry_after_s: float | None = None, headers: Mapping[str, str] | None = None
) -> JSONResponse:
    """The response of every error; 429 and 503 (529 to some clients) carry Retry-After, 401 WWW-Authenticate."""
    message = failure.message.encode(errors="replace").decode()  # it may quote a lone surrogate
    failure = replace(failure, message=message, request_id=getattr(request.state, "request_id", ""))
    found, path = _dialect_of(request), request.url.path
    unrouted = failure.code == HTTP_CODES[404] and path.startswith(_API)  # OpenAI's, as far as known
    of_openai = unrouted or (request.method == "GET" and path.startswith("/v1/models/"))
    tell = found.error_of if found else openai_error if of_openai else own_error
    others = failure.status == 422 and tell is not own_error
    status, body = tell(replace(failure, status=400) if others else failure)
    headers = dict(headers or {})
    if failure.status in (429, 503) and retry_after_s != inf:
        # Clients would retry 0 in a tight loop.
        headers["Retry-After"] = str(max(RETRY_AFTER_S, ceil(retry_after_s or 0)))
    if status == 401:
        headers["WWW-Authenticate"] = "Bearer"
    return JSONResponse(body, status_code=status, headers=headers)


def _dialect_of(request: Request) -> DialectRoutes | None:
    dialects: Sequence[DialectRoutes] = request.app.state.dialects
    return next((one for one in dialects if one.paths.fullmatch(request.url.path)), None)


def error_event(request: Request, response: JSONResponse) -> bytes:
    """An error as the last event of a stream that has begun."""
    found = _dialect_of(request)
    name = f"event: {found.error_event}\n".encode() if found and found.error_event else b""
    return name + b"data: " + bytes(response.body) + b"\n\n"


def known_error_response(request: Request, error: Exception) -> JSONResponse:
    """The response to an error of the table; any other error is a 500."""
    for kind, (status, code) in TABLE.items():
        if isinstance(error, kind):
            failure = Failure(
                status,
                error.code if isinstance(error, OverLimitError) else code,
                str(error),
                param=getattr(error, "parameter", None),
                figures=getattr(error, "details", None),
                upstream_code=getattr(error, "upstream_code", ""),
                upstream_type=getattr(error, "upstream_type", ""),
            )
            headers = error.headers if isinstance(error, OverLimitError) else None
            wait_s: float | None = getattr(error, "retry_after_s", None)
            if wait_s is None and isinstance(error, JudgeBudgetError | JudgeBusyError):
                wait_s = inf  # waiting is vain
            return _response(request, failure, retry_after_s=wait_s, headers=headers)
    return unknown_error_response(request, error)


async def _known(request: Request, error: Exception) -> JSONResponse:
    return known_error_response(request, error)


async def _malformed(request: Request, error: Exception) -> JSONResponse:
    if not isinstance(error, RequestValidationError):
        return unknown_error_response(request, error)
    found = error.errors()
    # Of a text or an object, the object's own error says more than that it is no text.
    telling = (one for one in found if one["type"] != "string_type" or not isinstance(one["input"], dict | list))
    first = next(telling, found[0])
    if isinstance(first["input"], bytes):
        message = "the body is not declared as JSON; send Content-Type: application/json"
        return _response(request, Failure(422, "malformed_body", message))
    source, *parts = first["loc"]
    if source == "body":
        parts = _named_by_caller(parts, error.body, is_missing=first["type"] == "missing")
    field = ".".join(map(str, parts))
    message = f"{source}.{field}: {first['msg']}" if field else f"{source}: {first['msg']}"
    if isinstance(first["input"], str | int | float):
        message += f" (it is {str(first['input'])[:_SHOWN_CHARACTERS]!r})"
    return _response(request, Failure(422, "malformed_body", message, param=field or None))


def _named_by_caller(parts: Sequence[str | int], body: Any, *, is_missing: bool) -> list[str | int]:
    """The place in the body, without the branches of unions that validation puts between."""
    named: list[str | int] = []
    for part in parts[:-1] if is_missing else parts:
        is_index = isinstance(part, int) and isinstance(body, list) and part < len(body)
        if is_index or (isinstance(body, dict) and part in body):
            body = body[part]
            named.append(part)
    return [*named, *(parts[-1:] if is_missing else ())]


def _setting_of(path: str, settings: Settings) -> str:
    """The setting that a path lacks, or where an episode ends; "" if it is neither."""
    match path.removeprefix("/v1/").split("/"):
        case ["embeddings" | "files" | "batches" as kind, *_] if kind not in settings.pass_through:
            return "the operator may pass it on to an upstream by QGUIDE_PASS_THROUGH"
        case ["learning", *_] if not settings.learn:
            return "a server with QGUIDE_LEARN has it, and takes orders there with QGUIDE_ADMIN"
        case ["learning"] if not settings.admin:
            return "orders to learning need QGUIDE_ADMIN"
        case ["episodes"] | ["episodes", _]:
            read = "" if settings.admin else "; to read recorded ones takes QGUIDE_ADMIN"
            return f"POST /v1/episodes/{{episode_id}}/outcome ends an episode{read}"
        case ["models", "load" | "drop" | "alias" | "shadow"] if not settings.admin:
            return "the operator's routes need QGUIDE_ADMIN"
    return ""


def _place_of(path: str) -> str:
    """Tell callers with another prefix in their base URL about the right one."""
    if not path.startswith(_API) and any(part in path for part in _API):
        return "paths of the API begin with /v1/ or /v1beta/, so the base URL has nothing before these"
    return "/docs lists all paths"


async def _http(request: Request, error: Exception) -> JSONResponse:
    if not isinstance(error, HTTPException):
        return unknown_error_response(request, error)
    code = HTTP_CODES.get(error.status_code, "invalid_request")
    message, path = str(error.detail), request.url.path
    setting = _setting_of(path, request.app.state.settings)
    if message == _UNROUTED:
        message = f"there is no path {path[:_SHOWN_PATH]!r}; {setting or _place_of(path)}"
    elif error.status_code == 405:
        allowed = f"it takes {(error.headers or {}).get('Allow', 'no such request')}"
        message = f"{path[:_SHOWN_PATH]!r} does not take {request.method}; {setting or allowed}"
    response = _response(request, Failure(error.status_code, code, message))
    response.headers.update(error.headers or {})  # a 405 lists the allowed methods in `Allow`
    return response


def unknown_error_response(request: Request, error: Exception) -> JSONResponse:
    """The response to an unexpected failure: a 500 without internals."""
    _log.error("request_failed", path=request.url.path, exc_info=error)
    message = "internal error; the server's log has the details under this request id"
    return _response(request, Failure(500, "internal_error", message))

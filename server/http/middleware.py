"""Middleware around every request: its id, log line, metrics and cancellation, its route and its episode.

Base URLs of other services are Azure's paths, and those of clients that leave out `/v1`. `/episodes/{id}/v1/…` is
served as `/v1/…`, and `X-Session-ID` names the episode on any path. An id that a request gives itself (`episode_id`,
`X-QGuide-Episode-Id`) comes first, then the URL's, then the header's: routers and frameworks may send `X-Session-ID`
for reasons of their own. `X-QGuide-Outcome` ends the episode after the step that has it, `X-QGuide-Earned` tells what
it was worth before; `/episodes/{id}/outcome` is served as `/v1/episodes/{id}/outcome`.

Coding agents name their session in headers of their own, which comes last: see
`qguide.server.episodes.service.Episodes.current`.
"""

import asyncio
import re
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import suppress
from math import isfinite, nan
from time import perf_counter
from typing import Final
from urllib.parse import quote, unquote_to_bytes

import structlog
from fastapi import Request
from starlette.datastructures import MutableHeaders
from starlette.routing import Match
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from qguide.qnet.errors import InvalidRequestError, QGuideError
from qguide.qnet.work import SESSION_HEADER
from qguide.server.episodes.service import EARNED_HEADER, OUTCOME_HEADER
from qguide.server.http.error_table import error_event, known_error_response, unknown_error_response
from qguide.server.http.errors import DrainingError
from qguide.server.observability.metrics import Metrics
from qguide.server.observability.request_context import open_account
from qguide.server.own_bodies.schemas import EPISODE_ID_PATTERN, MAX_EPISODE_ID_CHARACTERS

STAND_IN_HEADER: Final = "X-QGuide-Model"
"""Names the model that served a request for one that is not served."""
ID_HEADERS: Final = ("X-Request-ID", "Request-ID")
"""Headers in which clients look for a request's id; Anthropic's read the second."""
CLIENT_GONE: Final = 499
"""Status in logs and metrics of a request whose client disconnected; it is never sent."""
_CUT_OFF: Final = (
    "the server shut down before the answer was ready (QGUIDE_SHUTDOWN_TIMEOUT_S); retry, another replica will answer"
)

_SANE_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")
_BASES: Final = r"(?:/openai(?:/v1|/deployments/(?P<deployment>[^?]+?))?|/v1(?=/v1/))?(?:/v1)?"
"""`/openai/deployments/NAME/…` and `/openai/v1/…` of Azure, `/v1/v1/…` of Anthropic's clients whose base URL ends in
`/v1`, and none of OpenAI's whose base URL does not."""
_EPISODES: Final = "/episodes/"
_SESSION_HEADER: Final = SESSION_HEADER.lower().encode()
_OUTCOMES: Final = "a number from 0 to 1, true or false, or post another reward to /v1/episodes/ID/outcome"
_EARNINGS: Final = "the episode's outcome if it had ended before this step, as a number"
_AGENTS: Final = (
    b"x-claude-code-session-id",
    b"x-qwen-code-session-id",
    b"thread-id",
    b"thread_id",
    b"session-id",
    b"session_id",
)
"""Headers in which agents name their session; Codex has its thread's name in all four of the last, and a subagent's
thread in the first two."""
_SUBAGENT: Final = b"x-claude-code-agent-id"
_ID: Final = re.compile(EPISODE_ID_PATTERN)
_NUMBER: Final = re.compile(r"[0-9.eE+-]{1,40}")
_TRUTHS: Final = {"true": 1.0, "false": 0.0}
_SHOWN: Final = 40
_log = structlog.get_logger(__name__)


class Drain:
    """State of a server that shuts down."""

    def __init__(self) -> None:
        self.draining = False  # readiness fails, so that no new clients come
        self.refusing = False  # new requests are refused as well

    def check(self) -> None:
        """Refuse a new request at the end of a shutdown."""
        if self.refusing:
            raise DrainingError("the server is shutting down; retry, another replica will answer")


class HttpMiddleware(ABC):
    """Base of middleware: a subclass serves HTTP requests, and all else passes through it.

    An error that it raises is the answer; those of routes have been answered already.
    """

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve an HTTP request, or pass on another scope, such as the server's lifespan."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        try:
            await self._serve(scope, receive, send)
        except QGuideError as error:
            await known_error_response(Request(scope), error)(scope, receive, send)

    @abstractmethod
    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""


class CancelWhenGone(HttpMiddleware):
    """Cancels a request when its client disconnects, so that its queued work is never done.

    Neither uvicorn nor Starlette does that: a handler waiting for the device would go on. One that sets
    `request.state.outlives_client` does go on.
    """

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        cancellation = asyncio.timeout(None)
        answered = False
        watching: asyncio.Task[None] | None = None

        async def watch() -> None:
            while (await receive())["type"] != "http.disconnect":
                pass
            if not answered and not scope["state"].get("outlives_client"):
                cancellation.reschedule(0)  # a deadline in the past: cancels at once

        async def read() -> Message:
            nonlocal watching
            if watching:
                await watching
                return {"type": "http.disconnect"}
            message = await receive()
            if message["type"] == "http.request" and not message.get("more_body", False):
                watching = asyncio.create_task(watch())
            return message

        async def answer(message: Message) -> None:
            nonlocal answered
            ends = message["type"] == "http.response.body" and not message.get("more_body", False)
            answered = answered or ends
            await send(message)

        try:
            async with cancellation:
                await self.app(scope, read, answer)
        except TimeoutError:
            if not cancellation.expired():
                raise
        finally:
            if watching:
                watching.cancel()


class Observe(HttpMiddleware):
    """Gives each request an id, logs it and counts it; the outermost middleware."""

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope)
        started = perf_counter()
        metrics: Metrics = request.app.state.metrics
        given = request.headers.get("x-request-id", "")
        request_id = given if _SANE_ID.fullmatch(given) else uuid.uuid4().hex
        with (
            open_account() as account,
            structlog.contextvars.bound_contextvars(request_id=request_id),
            metrics.tracing.request(request.headers) as describe,
        ):
            request.state.request_id = request_id
            request.state.account = account
            status = await self._answer(request, receive, send)
            route = _route_of(request)
            describe(
                f"{request.method} {route}",
                {
                    "http.route": route,
                    "http.response.status_code": status,
                    "qguide.request_id": request_id,
                    "qguide.tokens": account.tokens,
                },
            )
            elapsed_s = perf_counter() - started
            known = {"key": account.key, "episode_id": account.episode_id}
            _log.info(
                "request",
                method=request.method,
                route=route,
                status=status,
                ms=round(elapsed_s * 1e3, 2),
                tokens=account.tokens,
                **{name: value for name, value in known.items() if value is not None},
            )
        metrics.count_request(route, status, elapsed_s, key=account.key, tokens=account.tokens)

    async def _answer(self, request: Request, receive: Receive, send: Send) -> int:
        status: int | None = None
        streams = False
        replica = request.app.state.settings.replica

        async def with_request_id(message: Message) -> None:
            nonlocal status, streams
            if message["type"] == "http.response.start":
                status = message["status"]
                headers = MutableHeaders(scope=message)
                streams = headers.get("content-type", "").startswith("text/event-stream")
                for name in ID_HEADERS:
                    headers[name] = request.state.request_id
                if replica:
                    headers["X-QGuide-Replica"] = replica
                if stand_in := request.state.account.stand_in:
                    headers[STAND_IN_HEADER] = quote(stand_in, safe="/@:")
            await send(message)

        try:
            await self.app(request.scope, receive, with_request_id)
        except asyncio.CancelledError:
            if not request.app.state.drain.draining:
                raise
            # At the shutdown time limit uvicorn cancels what still runs, and would answer it with a plain-text 500.
            response = known_error_response(request, DrainingError(_CUT_OFF))
            if status is None:
                await response(request.scope, receive, with_request_id)
            elif streams:
                event = error_event(request, response)
                await with_request_id({"type": "http.response.body", "body": event, "more_body": False})
        except Exception as error:  # the last place where the response can carry the request's id
            response = unknown_error_response(request, error)
            if status is None:  # otherwise the client sees a truncated body
                await response(request.scope, receive, with_request_id)
        return status or CLIENT_GONE


def _route_of(request: Request) -> str:
    """Path of the request's route, also of a request that was refused before its route ran."""
    found = request.scope.get("route")
    for route in () if found else request.app.state.routes:
        if route.matches(request.scope)[0] is not Match.NONE:
            found = route
            break
    return str(getattr(found, "path", "unknown"))


class Addresses(HttpMiddleware):
    """Serves a request by the path that it means, and reads its episode, outcome and earnings into its state.

    Args:
        unversioned: paths below /v1 that are served without it, and below the bases of other services.
    """

    def __init__(self, app: ASGIApp, *, unversioned: Sequence[str]) -> None:
        super().__init__(app)
        self._foreign = re.compile(rf"{_BASES}(?P<path>/(?:{'|'.join(unversioned)}|models)(?:/.*)?)", re.DOTALL)

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        read = {
            "session_id": _session_of(scope),
            "agent_session": _agent_session(scope),
            "outcome": _number_in(scope, OUTCOME_HEADER, lambda said: 0 <= said <= 1, _OUTCOMES),
            "earned": _number_in(scope, EARNED_HEADER, isfinite, _EARNINGS),
        }
        scope.setdefault("state", {}).update({name: value for name, value in read.items() if value is not None})
        found = self._foreign.fullmatch(scope["path"])
        if found and not scope["path"].startswith(f"/v1{found['path']}"):
            scope["path"] = f"/v1{found['path']}"
            if found["deployment"]:  # the model of a request whose body names none
                scope["state"]["account"].deployment = found["deployment"]
        await self.app(scope, receive, send)


def _session_of(scope: Scope) -> str | None:
    named = _take_from_path(scope)
    place = f"the episode id in the path {_EPISODES}ID/"
    if named is None:
        # Percent-encoded, as QGuide itself sends it to upstreams.
        header = _header_of(scope, _SESSION_HEADER)
        named, place = _decoded(header) if header else None, f"the header {SESSION_HEADER}"
    if named and not _is_usable(named):
        raise InvalidRequestError(
            f"{place} has {len(named)} characters or a control character; send 1 to {MAX_EPISODE_ID_CHARACTERS} "
            "printable characters, percent-encoded as in a URL"
        )
    return named or None


def _agent_session(scope: Scope) -> str | None:
    """The session that a coding agent names by itself, with its subagent; None if unusable."""
    named = next(filter(None, (_header_of(scope, name) for name in _AGENTS)), None)
    if named is None:
        return None
    parts = [named.decode(errors="replace"), (_header_of(scope, _SUBAGENT) or b"").decode(errors="replace")]
    session = "/".join(filter(None, parts))
    return session if _is_usable(session) else None


def _number_in(scope: Scope, name: str, fits: Callable[[float], bool], remedy: str) -> float | None:
    header = _header_of(scope, name.lower().encode())
    if header is None:
        return None
    said = header.decode(errors="replace")
    with suppress(ValueError):
        number = _TRUTHS.get(said.lower(), float(said) if _NUMBER.fullmatch(said) else nan)
        if fits(number):
            return number
    raise InvalidRequestError(f"the header {name} is {said[:_SHOWN]!r}; send {remedy}")


def _take_from_path(scope: Scope) -> str | None:
    """The id of `/episodes/{id}/…`, which is cut from the path; None for any other path.

    The raw path is read, where a slash within an id is still percent-encoded.
    """
    if not scope["path"].startswith(_EPISODES):
        return None
    raw: bytes = scope.get("raw_path") or scope["path"].encode()
    encoded, slash, rest = raw.partition(b"?")[0][len(_EPISODES) :].partition(b"/")
    if not encoded or not slash:
        return None
    if rest == b"outcome":
        scope["raw_path"] = b"/v1" + raw
        scope["path"] = _decoded(scope["raw_path"].partition(b"?")[0])
        return None
    scope["raw_path"] = slash + rest
    scope["path"] = _decoded(scope["raw_path"])
    return _decoded(encoded)


def _header_of(scope: Scope, wanted: bytes) -> bytes | None:
    for name, value in scope["headers"]:
        if name == wanted:
            return bytes(value.strip())
    return None


def _decoded(encoded: bytes) -> str:
    return unquote_to_bytes(encoded).decode(errors="replace")


def _is_usable(named: str) -> bool:
    return len(named) <= MAX_EPISODE_ID_CHARACTERS and bool(_ID.fullmatch(named))

"""Middleware around every request: its id, log line, metrics, cancellation and whole body."""

import asyncio
import re
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from time import perf_counter
from typing import Final
from urllib.parse import quote

import structlog
from fastapi import Request
from starlette.datastructures import MutableHeaders
from starlette.routing import Match
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from qguide.qnet.errors import OverloadedError, QGuideError
from qguide.server.http.error_dialects import REQUEST_ID_HEADER, speaks_anthropic
from qguide.server.http.error_table import error_event, known_error_response, unknown_error_response
from qguide.server.http.errors import BodyTimeoutError, BodyTooLargeError, DrainingError
from qguide.server.observability.metrics import Metrics
from qguide.server.observability.request_context import Account, open_account

STAND_IN_HEADER: Final = "X-QGuide-Model"
"""Names the model that served a request for one that is not served."""
CLIENT_GONE: Final = 499
"""Status in logs and metrics of a request whose client disconnected; it is never sent."""
_CUT_OFF: Final = (
    "the server shut down before the answer was ready (QGUIDE_SHUTDOWN_TIMEOUT_S); retry, another "
    "replica will answer"
)

_SANE_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")
_log = structlog.get_logger(__name__)
_WHOLE_BODIES: Final = 8
"""Memory for bodies that are still arriving, in bodies of the maximum size."""
_GIVEN_UP: Final = 0.0
"""A deadline in the past of the loop's clock, which marks a body that made room for others."""


class Drain:
    """State of a server that shuts down.

    Attributes:
        draining: readiness fails, so that no new clients come.
        refusing: new requests are refused as well.
    """

    def __init__(self) -> None:
        self.draining = False
        self.refusing = False

    def check(self) -> None:
        """Refuse a new request at the end of a shutdown."""
        if self.refusing:
            raise DrainingError("the server is shutting down; retry, another replica will answer")


class CancelWhenGone:
    """Cancels a request when its client disconnects, so that its queued work is never done.

    Neither uvicorn nor Starlette does that: a handler waiting for the device would go on.
    """

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request until it is answered or its client disconnects."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        cancellation = asyncio.timeout(None)
        answered = False
        watching: asyncio.Task[None] | None = None

        async def watch() -> None:
            while (await receive())["type"] != "http.disconnect":
                pass
            if not answered:
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


class Observe:
    """Gives each request an id, logs it and counts it; the outermost middleware."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request; an error that nothing else has answered is answered here."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        request = Request(scope)
        started = perf_counter()
        metrics: Metrics = request.app.state.metrics
        request_id = _id_of(request)
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
            _report(request, account, route=route, status=status, elapsed_s=elapsed_s)
        metrics.count_request(route, status, elapsed_s, key=account.key, tokens=account.tokens)

    async def _answer(self, request: Request, receive: Receive, send: Send) -> int:
        """Run the application with the request's id in the response; returns the status."""
        status: int | None = None
        streams = False
        replica = request.app.state.settings.replica

        async def with_request_id(message: Message) -> None:
            nonlocal status, streams
            if message["type"] == "http.response.start":
                status = message["status"]
                headers = MutableHeaders(scope=message)
                streams = headers.get("content-type", "").startswith("text/event-stream")
                headers["X-Request-ID"] = request.state.request_id
                if speaks_anthropic(request.scope["path"]):  # the path that was meant
                    headers[REQUEST_ID_HEADER] = request.state.request_id
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
            # At the shutdown time limit uvicorn cancels what still runs, and would answer it with
            # a plain-text 500.
            response = known_error_response(request, DrainingError(_CUT_OFF))
            if status is None:
                await response(request.scope, receive, with_request_id)
            elif streams:
                event = error_event(request, response)
                await with_request_id(
                    {"type": "http.response.body", "body": event, "more_body": False}
                )
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


def _report(
    request: Request, account: Account, *, route: str, status: int, elapsed_s: float
) -> None:
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


def _id_of(request: Request) -> str:
    given = request.headers.get("x-request-id", "")
    return given if _SANE_ID.fullmatch(given) else uuid.uuid4().hex


@dataclass(slots=True)
class _Arrival:
    """A body that is still arriving, and the callback that aborts it."""

    give_up: Callable[[], None]
    received: int = 0


class BodyReader:
    """Reads the whole body within limits of size and time, and passes it on as one message.

    A slow body does not count as a running request, because the limits on those are applied after
    this middleware; so slow clients cannot lock others out. The memory of all arriving bodies is
    limited: when it is full, the body that has been arriving for longest is aborted.

    Args:
        timeout_s: time from the head of the request to the last byte of its body.
    """

    def __init__(self, app: ASGIApp, *, max_body_bytes: int, timeout_s: float) -> None:
        self.app = app
        self._max_body_bytes = max_body_bytes
        self._max_arriving_bytes = _WHOLE_BODIES * max_body_bytes
        self._timeout_s = timeout_s
        self._arriving: dict[int, _Arrival] = {}
        self._arriving_bytes = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request once its body is complete."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        try:
            body: bytes | None = await self._read(scope, receive)
        except QGuideError as error:
            response = known_error_response(Request(scope), error)
            if isinstance(error, BodyTimeoutError | OverloadedError):
                response.headers["Connection"] = "close"  # the rest of the body is unread
            await response(scope, receive, send)
            return
        if body is None:  # the caller has hung up
            return

        async def whole() -> Message:
            nonlocal body
            if body is None:
                return await receive()
            message = {"type": "http.request", "body": body, "more_body": False}
            body = None
            return message

        await self.app(scope, whole, send)

    async def _read(self, scope: Scope, receive: Receive) -> bytes | None:
        """Read the body; None if the client disconnected."""
        if _announced(scope) > self._max_body_bytes:
            raise BodyTooLargeError(self._max_body_bytes)
        try:
            async with asyncio.timeout(self._timeout_s) as timeout:
                message = await receive()
                if message["type"] == "http.request" and message.get("more_body", False):
                    body = await self._read_on(message, receive, timeout)
                else:
                    body = message.get("body", b"") if message["type"] == "http.request" else None
        except TimeoutError:
            if timeout.when() == _GIVEN_UP:
                raise OverloadedError(
                    f"bodies still arriving hold more than {self._max_arriving_bytes:,} bytes "
                    "together, and this one has been arriving for longest; send it again, faster"
                ) from None
            raise BodyTimeoutError(self._timeout_s) from None
        if body is not None and len(body) > self._max_body_bytes:
            raise BodyTooLargeError(self._max_body_bytes)
        return body

    async def _read_on(
        self, message: Message, receive: Receive, timeout: asyncio.Timeout
    ) -> bytes | None:
        """Read the rest of a body that arrives in several messages."""
        arrival = _Arrival(lambda: timeout.reschedule(_GIVEN_UP))
        self._arriving[id(arrival)] = arrival
        pieces: list[bytes] = []
        try:
            while True:
                pieces.append(message.get("body", b""))
                self._hold(arrival, len(pieces[-1]))
                if not message.get("more_body", False):
                    return b"".join(pieces)
                message = await receive()
                if message["type"] != "http.request":
                    return None
        finally:
            self._arriving_bytes -= arrival.received
            self._arriving.pop(id(arrival), None)

    def _hold(self, arrival: _Arrival, size: int) -> None:
        """Count received bytes; over the limit, abort the body that began first."""
        arrival.received += size
        self._arriving_bytes += size
        if arrival.received > self._max_body_bytes:
            raise BodyTooLargeError(self._max_body_bytes)
        if self._arriving_bytes > self._max_arriving_bytes and self._arriving:
            oldest = self._arriving.pop(next(iter(self._arriving)))
            self._arriving_bytes -= oldest.received
            oldest.received = 0
            oldest.give_up()


def _announced(scope: Scope) -> int:
    """The Content-Length, or 0 if there is none."""
    for name, value in scope["headers"]:
        if name == b"content-length" and value.isdigit():
            return int(value)
    return 0

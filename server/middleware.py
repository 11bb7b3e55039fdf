"""What happens around every request: an id, a size limit, a log line, a count."""

import re
import uuid
from time import perf_counter

import structlog
from fastapi import HTTPException, Request
from starlette.middleware.base import RequestResponseEndpoint
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from server.errors import unknown_error_response
from server.telemetry import Telemetry

_SANE_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")
_log = structlog.get_logger(__name__)


class BodyTooLargeError(HTTPException):
    """More bytes came than the server takes."""

    def __init__(self, max_body_bytes: int) -> None:
        super().__init__(
            413,
            f"the body has more than {max_body_bytes:,} bytes; shorten the history or raise "
            "QGUIDE_MAX_BODY_BYTES",
        )


class BodyLimit:
    """Stops reading a body at a size, whatever length was announced."""

    def __init__(self, app: ASGIApp, *, max_body_bytes: int) -> None:
        self.app = app
        self.max_body_bytes = max_body_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one connection."""
        received = 0

        async def counted() -> Message:
            nonlocal received
            message = await receive()
            received += len(message.get("body", b""))
            if received > self.max_body_bytes:
                raise BodyTooLargeError(self.max_body_bytes)
            return message

        await self.app(scope, counted if scope["type"] == "http" else receive, send)


async def observe(request: Request, call_next: RequestResponseEndpoint) -> Response:
    """Give the request an id, log it and count it."""
    given = request.headers.get("x-request-id", "")
    request_id = given if _SANE_ID.fullmatch(given) else uuid.uuid4().hex
    request.state.request_id = request_id
    started = perf_counter()
    with structlog.contextvars.bound_contextvars(request_id=request_id):
        try:
            response = await call_next(request)
        except Exception as error:  # the last place where the answer can still have the id
            response = unknown_error_response(request, error)
        route = getattr(request.scope.get("route"), "path", "unknown")
        elapsed_s = perf_counter() - started
        _log.info(
            "request",
            method=request.method,
            route=route,
            status=response.status_code,
            ms=round(elapsed_s * 1e3, 2),
        )
    telemetry: Telemetry = request.app.state.telemetry
    telemetry.requests.labels(route, response.status_code).inc()
    telemetry.request_seconds.labels(route).observe(elapsed_s)
    response.headers["X-Request-ID"] = request_id
    if replica := request.app.state.settings.replica:
        response.headers["X-QGuide-Replica"] = replica
    return response

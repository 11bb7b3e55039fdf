"""Reading of whole request bodies, before a request counts as running."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from fastapi import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from qguide.qnet.errors import OverloadedError, QGuideError
from qguide.server.errors.table import known_error_response
from qguide.server.errors.types import BodyTimeoutError, BodyTooLargeError

_WHOLE_BODIES: Final = 8
"""Memory for bodies that are still arriving, in bodies of the maximum size."""
_GIVEN_UP: Final = 0.0
"""A deadline in the past of the loop's clock, which marks a body that made room for others."""


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

"""Reading of request bodies, before a request takes a place among those that run."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from fastapi import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from qnet.errors import OverloadedError, QGuideError
from server.access.rate_limits import Caller
from server.errors.table import known_error_response
from server.errors.types import BodyTimeoutError, BodyTooLargeError, MalformedBodyError
from server.messages.surrogates import lone_surrogate_in
from server.middleware.long_bodies import LONG_BYTES, LongBodyTurns

_WHOLE_BODIES: Final = 64
"""Bodies of the largest size that may be arriving together, as far as memory goes."""
_GIVEN_UP: Final = 0.0
"""A deadline long past, by the loop's clock."""


@dataclass(slots=True)
class _Arrival:
    """A body that is still coming, and how to give it up."""

    give_up: Callable[[], None]
    received: int = 0


class BodyReader:
    """Reads the whole body within a size and a time, and hands it on as one message.

    Slow bodies take no place of the limits on running requests, which come after this; so they
    cannot keep others out. What they may hold together is limited: the one that began first is
    given up for the others.

    Args:
        timeout_s: from the head of the request to the last byte of the body.
    """

    def __init__(self, app: ASGIApp, *, max_body_bytes: int, timeout_s: float) -> None:
        self.app = app
        self._max_body_bytes = max_body_bytes
        self._max_arriving_bytes = _WHOLE_BODIES * max_body_bytes
        self._timeout_s = timeout_s
        self._arriving: dict[int, _Arrival] = {}
        self._arriving_bytes = 0
        self._turns = LongBodyTurns()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request once it is whole."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        try:
            body: bytes | None = await self._read(scope, receive)
        except QGuideError as error:
            response = known_error_response(Request(scope), error)
            if isinstance(error, BodyTimeoutError | OverloadedError):
                response.headers["Connection"] = "close"  # what still comes is no request
            await response(scope, receive, send)
            return
        if body is None:  # the caller has hung up
            return

        async def whole() -> Message:
            nonlocal body
            if body is None:
                return await receive()
            if len(body) > LONG_BYTES:
                await self._turns.take(_caller(scope))
            message = {"type": "http.request", "body": body, "more_body": False}
            body = None
            return message

        await self.app(scope, whole, send)

    async def _read(self, scope: Scope, receive: Receive) -> bytes | None:
        """The body, or None if the caller hung up.

        Raises:
            BodyTooLargeError: more bytes are announced, or come, than the server takes.
            BodyTimeoutError: they did not come in time.
            OverloadedError: it was given up for other bodies.
            MalformedBodyError: it holds half a character.
        """
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
                    f"bodies that are still coming hold more than {self._max_arriving_bytes:,} "
                    "bytes together, and this one began first; send it again, faster"
                ) from None
            raise BodyTimeoutError(self._timeout_s) from None
        if body is not None and len(body) > self._max_body_bytes:
            raise BodyTooLargeError(self._max_body_bytes)
        if body and (place := lone_surrogate_in(body)):
            raise MalformedBodyError(
                f"{place} holds half a character (a lone surrogate); send whole ones"
            )
        return body

    async def _read_on(
        self, message: Message, receive: Receive, timeout: asyncio.Timeout
    ) -> bytes | None:
        """The rest of a body that comes in pieces."""
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
        """Count bytes that have come; over the limit the body that began first is given up."""
        arrival.received += size
        self._arriving_bytes += size
        if arrival.received > self._max_body_bytes:
            raise BodyTooLargeError(self._max_body_bytes)
        if self._arriving_bytes > self._max_arriving_bytes and self._arriving:
            oldest = self._arriving.pop(next(iter(self._arriving)))
            self._arriving_bytes -= oldest.received
            oldest.received = 0
            oldest.give_up()


def _caller(scope: Scope) -> str:
    """The name of the caller that was admitted; "" where anybody is."""
    caller: Caller | None = scope.get("state", {}).get("caller")
    return caller.name if caller else ""


def _announced(scope: Scope) -> int:
    """The length that the head announces, or 0."""
    for name, value in scope["headers"]:
        if name == b"content-length" and value.isdigit():
            return int(value)
    return 0

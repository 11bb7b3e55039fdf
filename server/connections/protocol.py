"""uvicorn's HTTP protocol with limits; uvicorn itself has none for its faster parser.

`h11_max_incomplete_event_size` bounds the head for h11 alone. httptools collects a header until it
ends, in a copy per piece, so that one endless header costs time that grows with its square.
"""

import json
import socket
import uuid
from asyncio import TimerHandle, Transport
from http import HTTPStatus
from typing import ClassVar, Final, Literal

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from server.connections.limits import ConnectionTable, network_of

_PIECE_BYTES: Final = 16_384
"""What the parser gets at a time; limits are checked between pieces."""
_MAX_PIPELINED: Final = 16
"""Requests sent ahead of their answers; each costs a task and a scope while it waits."""
_COUNTED_PER_HEADER: Final = len(b": \r\n")
_LINGER_S: Final = 2.0
_LINGER_BYTES: Final = 1024**2
"""What is still read after a refusal: closing at once would reset the connection, and the client
might lose the answer."""

Reading = Literal["nothing", "head", "body"]
Refusal = tuple[int, str, str]
"""Status, code and message."""

_NO_HTTP: Final = (400, "malformed_request", "this is no request of HTTP/1.1")
_TOO_MANY_PIPELINED: Final = (
    400,
    "too_many_pipelined",
    f"more than {_MAX_PIPELINED} requests were sent ahead of their answers; wait for some",
)


class RefusedError(Exception):
    """What the parser's callbacks raise to stop it; the answer is in `_refusal`."""


class LimitedHttpProtocol(HttpToolsProtocol):
    """One connection.

    Two clocks of uvicorn's and ours never run at once: uvicorn's runs between an answer and the
    next byte, ours while a head is awaited or a body comes that nobody reads. A body that is read
    has its clock where it is read (`BodyReader`), which can answer with the request's id.
    """

    table: ClassVar[ConnectionTable]

    address: str
    waiting_since: float

    def connection_made(self, transport: Transport) -> None:  # type: ignore[override]
        """Take the connection, or say that there are too many."""
        super().connection_made(transport)
        self.limits = self.table.limits
        self.timeout_keep_alive = self.limits.keep_alive_s  # type: ignore[assignment]  # any number
        self.address = network_of(self.client[0]) if self.client else ""
        self.waiting_since = self.loop.time()
        self._clock: TimerHandle | None = None
        self._stalled: TimerHandle | None = None
        self._reading: Reading = "nothing"
        self._unused_bytes = 0
        self._head_bytes = 0
        self._headers_seen = 0
        self._refusal = _NO_HTTP
        self._discarded_bytes: int | None = None
        _limit_unacknowledged(transport, self.limits.stalled_s)
        if self.table.admit(self):
            self._await_head()
        else:
            self.table.count_closed("too_many_connections")
            transport.write(_raw_error(*self._too_many_connections()))
            transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the connection."""
        self.table.remove(self)
        self._stop_clock()
        self.resume_writing()
        super().connection_lost(exc)

    # What the table asks.

    @property
    def is_expendable(self) -> bool:
        """True if no request that has wholly arrived waits for its answer."""
        arriving = self._reading == "body" and not self.pipeline
        return arriving or not self._is_answering

    def evict(self) -> None:
        """Close without a word; what the client did not take of an answer is dropped."""
        self.table.count_closed("evicted")
        if self.transport.get_write_buffer_size():
            self.transport.abort()
        else:
            self.transport.close()

    # What comes from the client.

    def data_received(self, data: bytes) -> None:
        """Parse in pieces, and stop where a limit is reached."""
        for start in range(0, len(data), _PIECE_BYTES):
            if self._discarded_bytes is not None or self.transport.is_closing():
                self._discard(len(data) - start)
                return
            piece = data[start : start + _PIECE_BYTES]
            self._unused_bytes += len(piece)
            super().data_received(piece)
            # No callback used any of it: an endless header, trailer, address or chunk extension.
            if self._unused_bytes > self.limits.max_header_bytes:
                self._refuse(*self._head_too_large())
        if self._reading != "body" and not self._is_answering:
            self._await_head()

    def on_message_begin(self) -> None:
        """Begin to count."""
        super().on_message_begin()
        self._reading = "head"
        self._unused_bytes = self._head_bytes = self._headers_seen = 0

    def on_url(self, url: bytes) -> None:
        """Count the address, which may come in pieces."""
        self._count_head(len(url))
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        """Count a header or trailer.

        Raises:
            RefusedError: there are too many, or they are too long together.
        """
        self._headers_seen += 1
        if self._headers_seen > self.limits.max_headers:
            self._refusal = self._head_too_large()
            raise RefusedError
        self._unused_bytes = 0
        self._count_head(len(name) + len(value) + _COUNTED_PER_HEADER)
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """Hand the request on.

        Raises:
            RefusedError: too many wait for their answers on this connection.
        """
        if len(self.pipeline) >= _MAX_PIPELINED:
            self._refusal = _TOO_MANY_PIPELINED
            raise RefusedError
        self._reading = "body"
        self._unused_bytes = 0
        self._stop_clock()
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        """Take a piece of the body."""
        self._unused_bytes = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        """Wait for the answer, or where it has been given for the next request."""
        super().on_message_complete()
        self._reading = "nothing"
        self._unused_bytes = 0
        self.waiting_since = self.loop.time()
        if not self._is_answering:  # it was refused before its body had come
            self._await_head()

    # What goes to the client.

    def on_response_complete(self) -> None:
        """Wait for the next request, or for the rest of one that was refused early."""
        super().on_response_complete()
        self.waiting_since = self.loop.time()
        if not self._is_answering and self._reading != "nothing":
            self._unset_keepalive_if_required()
            self._await_head()

    def pause_writing(self) -> None:
        """Wait for the client to take what was sent, but not for ever."""
        super().pause_writing()
        self._stalled = self.loop.call_later(self.limits.stalled_s, self.transport.abort)

    def resume_writing(self) -> None:
        """Go on sending."""
        super().resume_writing()
        if self._stalled:
            self._stalled.cancel()
            self._stalled = None

    def send_400_response(self, msg: str) -> None:
        """Answer what cannot be parsed or is over a limit, in the shape of all errors."""
        self._refuse(*self._refusal)

    @property
    def _is_answering(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def _await_head(self) -> None:
        """Start the clock, unless it runs: bytes that make no head do not put it back."""
        closing = self._discarded_bytes is not None or self.transport.is_closing()
        if self._clock is None and not closing:
            self._clock = self.loop.call_later(self.limits.head_timeout_s, self._time_out)

    def _stop_clock(self) -> None:
        if self._clock:
            self._clock.cancel()
            self._clock = None

    def _time_out(self) -> None:
        self._clock = None
        if self._reading != "head":  # nothing was asked, or it has its answer
            self.table.count_closed("silent")
            self.transport.close()
            return
        self._refuse(
            408,
            "request_timeout",
            f"the head of the request had not come after {self.limits.head_timeout_s:g} s; send it "
            "at once or raise QGUIDE_HEAD_TIMEOUT_S",
        )

    def _count_head(self, size: int) -> None:
        self._head_bytes += size
        if self._head_bytes > self.limits.max_header_bytes:
            self._refusal = self._head_too_large()
            raise RefusedError

    def _head_too_large(self) -> Refusal:
        return (
            431,
            "head_too_large",
            f"the head has more than {self.limits.max_headers:,} headers or "
            f"{self.limits.max_header_bytes:,} bytes; send less or raise QGUIDE_MAX_HEADERS or "
            "QGUIDE_MAX_HEADER_BYTES",
        )

    def _too_many_connections(self) -> Refusal:
        return (
            503,
            "too_many_connections",
            f"{self.address} has {self.limits.max_connections_per_address:,} connections, or all "
            f"together have {self.limits.max_connections:,}; close some, or raise "
            "QGUIDE_MAX_CONNECTIONS_PER_ADDRESS or QGUIDE_MAX_CONNECTIONS",
        )

    def _refuse(self, status: int, code: str, message: str) -> None:
        """Answer and close; without an answer where it would be taken for another request's."""
        self.table.count_closed(code)
        self._stop_clock()
        earlier = self._is_answering and (self._reading == "head" or bool(self.pipeline))
        begun = self._is_answering and self.cycle.response_started
        if earlier or begun:
            self.transport.close()
            return
        self.transport.write(_raw_error(status, code, message))
        self.transport.write_eof()
        self._discarded_bytes = 0
        self._clock = self.loop.call_later(_LINGER_S, self.transport.close)

    def _discard(self, size: int) -> None:
        self._discarded_bytes = (self._discarded_bytes or 0) + size
        if self._discarded_bytes > _LINGER_BYTES:
            self.transport.close()


def _raw_error(status: int, code: str, message: str) -> bytes:
    """An answer from below the application, which has not seen the request."""
    detail = {"code": code, "message": message, "request_id": uuid.uuid4().hex}
    body = json.dumps({"error": detail}).encode()
    head = [
        f"HTTP/1.1 {status} {HTTPStatus(status).phrase}",
        "content-type: application/json",
        f"content-length: {len(body)}",
        "connection: close",
    ]
    if status == 503:
        head.append("retry-after: 1")
    return "\r\n".join([*head, "", ""]).encode() + body


def _limit_unacknowledged(transport: Transport, limit_s: float) -> None:
    """Let the kernel drop a client that takes nothing of an answer already written."""
    connection = transport.get_extra_info("socket")
    if connection is not None and hasattr(socket, "TCP_USER_TIMEOUT"):  # Linux
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, round(limit_s * 1e3))

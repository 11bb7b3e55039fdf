"""uvicorn's HTTP protocol with limits, which uvicorn lacks for its faster parser (httptools).

`h11_max_incomplete_event_size` limits the head for h11 only. httptools copies the whole header for each piece it
receives, so an endless header would cost time quadratic in its length.

The classes extended here are uvicorn's own business: `pyproject.toml` names the newest version that this module was
tested with.
"""

import socket
from asyncio import TimerHandle, Transport
from typing import ClassVar, Final, Literal

from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from qguide.server.http.connection_limits import ConnectionTable, LastAnswer, ParsingTurns, network_of, raw_error

_PIECE_BYTES: Final = 4_096  # bytes parsed at a time; limits are checked in between
_CALLS_AT_ONCE: Final = 512  # calls of the parser after which the rest of the data waits for a turn
_MAX_PIPELINED: Final = 16  # maximum pipelined requests; each costs a task and a scope while it waits
_COUNTED_PER_HEADER: Final = len(b": \r\n")
_LINGER_S: Final = 2.0
_LINGER_BYTES: Final = 1024**2
"""Time and bytes for which a refused connection is still read: closing it at once would reset it, and the client might
lose the answer."""

_CLOSE: Final = (b"connection", b"close")

Reading = Literal["nothing", "head", "body"]
Refusal = tuple[int, str, str]
"""Status, code and message."""

_NO_HTTP: Final = (400, "malformed_request", "this is not a valid HTTP/1.1 request")
_TOO_MANY_PIPELINED: Final = (
    400,
    "too_many_pipelined",
    f"more than {_MAX_PIPELINED} requests were pipelined; wait for answers before sending more",
)


class RefusedError(Exception):
    """Raised by the parser's callbacks to stop it; the answer is in `_refusal`."""


class HeldFlow(FlowControl):
    """Flow control that keeps a connection from being read while its data waits for a turn."""

    _held = False

    def hold(self) -> None:
        """Stop reading."""
        self._held = True
        self.pause_reading()

    def let_go(self, *, read_on: bool) -> None:
        """Leave it to uvicorn again when to read; `read_on` does so now."""
        self._held = False
        if read_on:
            self.resume_reading()

    def resume_reading(self) -> None:
        """Read on unless it is held."""
        if not self._held:
            super().resume_reading()


class LimitedHttpProtocol(HttpToolsProtocol):
    """One connection.

    uvicorn's timer and ours never run at the same time: uvicorn's runs from an answer to the next byte, ours while a
    head, or a body that no handler reads, is arriving. A body that is read is timed by `BodyReader`, which can answer
    with the request's id.
    """

    table: ClassVar[ConnectionTable]
    turns: ClassVar[ParsingTurns]

    flow: HeldFlow
    address: str
    waiting_since: float

    def connection_made(self, transport: Transport) -> None:  # type: ignore[override]
        """Admit the connection, or answer that there are too many."""
        super().connection_made(transport)
        self.flow = HeldFlow(transport)
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
        self._calls = 0
        self._chunks = 0
        self._is_chunked = False
        self._unparsed = b""
        self._running: list[RequestResponseCycle] = []
        self._refusal = _NO_HTTP
        self._discarded_bytes: int | None = None
        connection = transport.get_extra_info("socket")
        if connection is not None and hasattr(socket, "TCP_USER_TIMEOUT"):  # Linux drops who does not acknowledge
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, round(self.limits.body_timeout_s * 1e3))
        if self.table.admit(self):
            self._await_head()
        else:
            self.table.count_closed("too_many_connections")
            transport.write(raw_error(*self._too_many_connections()))
            transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        """Remove the connection from the table."""
        self.table.remove(self)
        self._stop_clock()
        self.resume_writing()
        super().connection_lost(exc)

    # The interface of the connection table.

    @property
    def is_expendable(self) -> bool:
        """True if no completely received request is waiting for its answer."""
        arriving = self._reading == "body" and not self.pipeline
        return arriving or not self._is_answering

    def evict(self) -> None:
        """Close without an answer, dropping any unsent rest of an earlier one."""
        self.table.count_closed("evicted")
        self._drop_answers()
        if self.transport.get_write_buffer_size():
            self.transport.abort()
        else:
            self.transport.close()

    def _unsupported_upgrade_warning(self) -> None:
        """Say nothing: uvicorn would advise to install a package, which changes nothing here."""

    def _should_upgrade(self) -> bool:
        """True for a WebSocket, unless a body or the answer to an earlier request is on its way."""
        return super()._should_upgrade() and not self._is_chunked and not self._is_answering

    def handle_websocket_upgrade(self) -> None:
        """Leave the connection, and its place, to the protocol of WebSockets."""
        self._stop_clock()
        self.table.remove(self)
        super().handle_websocket_upgrade()

    # Callbacks for data from the client.

    def data_received(self, data: bytes) -> None:
        """Parse what arrived, or keep it if earlier data still waits for its turn."""
        if self._unparsed:
            self._unparsed += data
        else:
            self._parse(data)

    def _parse(self, data: bytes) -> None:
        """Parse in pieces, and stop when a limit is reached; many small parts wait for a turn."""
        self._calls = 0
        for start in range(0, len(data), _PIECE_BYTES):
            if self._discarded_bytes is not None or self.transport.is_closing():
                self._discard(len(data) - start)
                return
            if self._calls > _CALLS_AT_ONCE:
                self._unparsed = data[start:]
                self.flow.hold()
                self.turns.add(self._take_turn)
                return
            piece = data[start : start + _PIECE_BYTES]
            self._unused_bytes += len(piece)
            super().data_received(piece)
            if self.transport.get_protocol() is not self:  # upgraded; nothing follows before 101
                return
            # No callback has consumed it: an endless header, trailer, URL or chunk extension.
            if self._unused_bytes > self.limits.max_header_bytes:
                self._refuse(*self._head_too_large())
        if self._reading != "body" and not self._is_answering:
            self._await_head()

    def _take_turn(self) -> None:
        data, self._unparsed = self._unparsed, b""
        self._parse(data)
        if not self._unparsed and not self.transport.is_closing():
            self.flow.let_go(read_on=not self.pipeline)

    def on_message_begin(self) -> None:
        """Reset the counters for a new request."""
        super().on_message_begin()
        self._reading = "head"
        self._unused_bytes = self._head_bytes = self._headers_seen = self._chunks = 0
        self._is_chunked = False

    def on_url(self, url: bytes) -> None:
        """Count the URL, which may arrive in pieces."""
        self._count_head(len(url))
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        """Count a header or trailer."""
        self._calls += 1
        self._headers_seen += 1
        self._is_chunked |= name.lower() == b"transfer-encoding"
        if self._headers_seen > self.limits.max_headers:
            self._refusal = self._head_too_large()
            raise RefusedError
        self._unused_bytes = 0
        self._count_head(len(name) + len(value) + _COUNTED_PER_HEADER)
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """Pass the request on to the application."""
        if len(self.pipeline) >= _MAX_PIPELINED:
            self._refusal = _TOO_MANY_PIPELINED
            raise RefusedError
        self._reading = "body"
        self._unused_bytes = 0
        self._stop_clock()
        super().on_headers_complete()
        if self.parser.should_upgrade() and self._should_upgrade():
            return
        if self._is_chunked:  # until all of it has arrived, no second request may follow
            self.cycle.default_headers = [*self.cycle.default_headers, _CLOSE]
            self.cycle.transport = LastAnswer(self.transport, self.cycle)
        self._running = [one for one in self._running if not one.response_complete]
        self._running.append(self.cycle)

    def on_body(self, body: bytes) -> None:
        """Receive a piece of the body: a chunk, or what arrived together."""
        self._calls += 1
        self._chunks += 1
        if self._chunks > self.table.max_chunks:
            self._refusal = self._too_many_chunks()
            raise RefusedError
        self._unused_bytes = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        """Wait for the answer, or for the next request if the answer was sent already."""
        super().on_message_complete()
        if self._is_chunked:
            self.cycle.default_headers = self.server_state.default_headers
            self.cycle.transport = self.transport
        self._reading = "nothing"
        self._unused_bytes = 0
        self.waiting_since = self.loop.time()
        if not self._is_answering:  # it was refused before its body had arrived
            self._await_head()

    # Callbacks for data to the client.

    def on_response_complete(self) -> None:
        """Wait for the next request, or for the rest of one that was refused early.

        The rest of a body in chunks is not parsed: it may be endless, and each chunk takes time.
        """
        super().on_response_complete()
        self.waiting_since = self.loop.time()
        if self._is_answering or self._reading == "nothing" or self.transport.is_closing():
            return
        self._unset_keepalive_if_required()
        if self._reading == "body" and self._is_chunked:
            self._linger()
        else:
            self._await_head()

    def pause_writing(self) -> None:
        """Give the client limited time to read what was sent."""
        super().pause_writing()
        self._stalled = self.loop.call_later(self.limits.body_timeout_s, self.transport.abort)

    def resume_writing(self) -> None:
        """Continue sending."""
        super().resume_writing()
        if self._stalled:
            self._stalled.cancel()
            self._stalled = None

    def send_400_response(self, msg: str) -> None:
        """Answer an unparsable request, or one above a limit, in the common error format."""
        self._refuse(*self._refusal)

    @property
    def _is_answering(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def _await_head(self) -> None:
        """Start the timer unless it is running; bytes of an incomplete head do not restart it."""
        closing = self._discarded_bytes is not None or self.transport.is_closing()
        if self._clock is None and not closing:
            self._clock = self.loop.call_later(self.limits.head_timeout_s, self._time_out)

    def _stop_clock(self) -> None:
        if self._clock:
            self._clock.cancel()
            self._clock = None

    def _time_out(self) -> None:
        self._clock = None
        if self._reading != "head":  # no request has begun, or it has been answered
            self.table.count_closed("silent")
            self._hang_up()
            return
        self._refuse(
            408,
            "request_timeout",
            f"the request's head was incomplete after {self.limits.head_timeout_s:g} s; send it faster or raise "
            "QGUIDE_HEAD_TIMEOUT_S",
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
            f"the request's head has more than {self.limits.max_headers:,} headers or {self.limits.max_header_bytes:,} "
            "bytes; send fewer or raise QGUIDE_MAX_HEADERS or QGUIDE_MAX_HEADER_BYTES",
        )

    def _too_many_chunks(self) -> Refusal:
        return (
            400,
            "too_many_chunks",
            f"the body arrived in more than {self.table.max_chunks:,} chunks; send larger ones, or raise "
            "QGUIDE_MAX_BODY_BYTES: it allows one for 128 bytes",
        )

    def _too_many_connections(self) -> Refusal:
        return (
            503,
            "too_many_connections",
            f"{self.address} has {self.limits.max_connections_per_address:,} open connections, or all clients together "
            f"have {self.limits.max_connections:,}; close some, or raise QGUIDE_MAX_CONNECTIONS_PER_ADDRESS or "
            "QGUIDE_MAX_CONNECTIONS",
        )

    def _refuse(self, status: int, code: str, message: str) -> None:
        """Answer and close; only close if the answer could be taken for another request's."""
        if self._discarded_bytes is not None or self.transport.is_closing():
            return  # refused before, for another reason
        self.table.count_closed(code)
        self._stop_clock()
        earlier = self._is_answering and (self._reading == "head" or bool(self.pipeline))
        begun = self._is_answering and self.cycle.response_started
        if earlier or begun:
            self._hang_up()
            return
        self._drop_answers()
        self.transport.write(raw_error(status, code, message))
        self._linger()

    def _linger(self) -> None:
        """Say that nothing follows, and read on for a while without parsing."""
        self.transport.write_eof()
        self._discarded_bytes = 0
        self._clock = self.loop.call_later(_LINGER_S, self.transport.close)

    def _discard(self, size: int) -> None:
        """Drop what arrives; beyond the limit it is left unread, which costs nothing."""
        self._discarded_bytes = (self._discarded_bytes or 0) + size
        if self._discarded_bytes > _LINGER_BYTES and not self.transport.is_closing():
            self.flow.hold()

    def _hang_up(self) -> None:
        self._drop_answers()
        self.transport.close()

    def _drop_answers(self) -> None:
        """Let running requests see that their client is gone: nothing can be written any more."""
        for cycle in self._running:
            if not cycle.response_complete:
                cycle.disconnected = True
                cycle.message_event.set()

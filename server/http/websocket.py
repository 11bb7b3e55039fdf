"""uvicorn's WebSocket protocol with limits: of parsing, of unread answers, and of connections.

A message is at most as large as a body (uvicorn's `ws_max_size`). Frames may be as small as six bytes, each of which is
work in Python, so a connection that sends very many of them takes turns.
"""

from asyncio import BaseTransport, TimerHandle
from time import perf_counter
from typing import ClassVar, Final

from uvicorn._types import ASGISendEvent
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.frames import CloseCode, Frame

from qguide.server.http.connection_limits import ConnectionTable, ParsingTurns, network_of, raw_error

_PIECE_BYTES: Final = 4_096  # bytes parsed at a time; the clock is read in between
_LONGEST_TURN_S: Final = 0.005  # time of parsing after which the rest of the data waits for a turn
_NO_HANDSHAKE: Final = "this request opens no WebSocket; send GET without a body, and with no line above 8,192 bytes"


class LimitedWebSocket(WebSocketsSansIOProtocol):
    """One connection after its upgrade; it has the place in the table that it had before.

    Idle ones are not evicted: a key has few, and each ends after a while (`ResponsesSocket`).
    """

    table: ClassVar[ConnectionTable]
    turns: ClassVar[ParsingTurns]

    is_expendable = False
    address = ""
    waiting_since = 0.0
    _unparsed = b""
    _stalled: TimerHandle | None = None

    def connection_made(self, transport: BaseTransport) -> None:
        """Take the connection's place."""
        super().connection_made(transport)
        self.address = network_of(self.client[0]) if self.client else ""
        self.table.admit(self)

    def connection_lost(self, exc: Exception | None) -> None:
        """Give the place free."""
        self.table.remove(self)
        self._stop_clock()
        super().connection_lost(exc)

    def evict(self) -> None:
        """Close without an answer."""
        self.transport.abort()

    def shutdown(self) -> None:
        """Let the response that is being made be sent before the connection is closed."""
        if not self.handshake_complete or self.close_sent:
            super().shutdown()
            return
        self.stop_keepalive()
        restart = CloseCode.SERVICE_RESTART
        self.queue.put_nowait({"type": "websocket.disconnect", "code": restart, "reason": None})

    def data_received(self, data: bytes) -> None:
        """Parse what arrived, or keep it if earlier data still waits for its turn."""
        if self._unparsed or self._stalled:
            self._unparsed += data
            self.transport.pause_reading()
        else:
            self._parse(data)

    def _parse(self, data: bytes) -> None:
        began_s = perf_counter()
        for start in range(0, len(data), _PIECE_BYTES):
            if self.transport.is_closing():
                return
            if self._stalled or perf_counter() - began_s > _LONGEST_TURN_S:
                self._unparsed = data[start:]
                self.transport.pause_reading()
                if not self._stalled:
                    self.turns.add(self._take_turn)
                return
            super().data_received(data[start : start + _PIECE_BYTES])
            if self.conn.handshake_exc and not self.handshake_initiated:
                self.close_sent = True  # uvicorn would wait for ever
                self.transport.write(raw_error(400, "malformed_request", _NO_HANDSHAKE))
                self.transport.close()

    async def send(self, message: ASGISendEvent) -> None:
        """Send to the client."""
        await super().send(message)
        # uvicorn would log a handshake that is refused as one that the application forgot.
        self.handshake_complete = self.handshake_complete or self.close_sent

    def _take_turn(self) -> None:
        data, self._unparsed = self._unparsed, b""
        self._parse(data)
        self._read_on()

    def _read_on(self) -> None:
        """Read again, unless something still waits to be parsed, taken or sent."""
        waits = self._unparsed or self.read_paused or self._stalled
        if not waits and not self.transport.is_closing():
            self.transport.resume_reading()

    def handle_cont(self, event: Frame) -> None:
        """Take a part of a message; empty ones would be endless."""
        if len(self.frames) >= self.table.max_chunks:
            self.conn.fail(CloseCode.MESSAGE_TOO_BIG, "too many frames")
            self.handle_parser_exception()
        else:
            super().handle_cont(event)

    def pause_writing(self) -> None:
        """Give the client limited time to read what was sent; nothing is parsed meanwhile."""
        super().pause_writing()
        self._stalled = self.loop.call_later(self.table.limits.body_timeout_s, self.transport.abort)
        self.transport.pause_reading()

    def resume_writing(self) -> None:
        """Go on."""
        super().resume_writing()
        self._stop_clock()
        if self._unparsed:
            self.turns.add(self._take_turn)
        else:
            self._read_on()

    def _stop_clock(self) -> None:
        if self._stalled:
            self._stalled.cancel()
            self._stalled = None

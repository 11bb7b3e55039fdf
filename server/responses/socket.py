"""WebSocket Responses: a connection whose events are requests, one after the other.

    client   {"type": "response.create", ...}        the body of POST /v1/responses
    server   {"type": "response.created", ...} ...   the events of its stream, or
             {"type": "error", "status", "error"}    its error

Each of them passes through the whole application as a POST of its own, with the headers of the handshake: keys, limits,
episodes, guidance and errors are those of HTTP. So does the handshake, as a GET that is answered with 101 where a
WebSocket may be opened.

A response with `store: false` can be continued as long as its connection is open, and until a request that continues it
has failed.
"""

import asyncio
import json
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any, Final

from fastapi import Request
from starlette.types import Message, Receive, Scope, Send
from websockets.frames import CloseCode

from qguide.qnet.dialects.shapes import Json
from qguide.qnet.errors import QGuideError
from qguide.server.http.bodies import is_long, most_values, parsed_json
from qguide.server.http.error_bodies import Failure, openai_detail
from qguide.server.http.errors import ForbiddenError, OverLimitError
from qguide.server.http.event_stream import DATA
from qguide.server.observability.request_context import open_account
from qguide.server.responses.shelf import row_of
from qguide.server.settings.settings import Settings

OPENED: Final = 101
_CREATE: Final = "response.create"
_READ: Final = "response.processed"  # Codex may say that it has read a response, which changes nothing
_KEPT: Final = ("http_version", "path", "raw_path", "query_string", "root_path", "client", "server")
_OF_HANDSHAKES: Final = (b"sec-websocket-", b"connection", b"upgrade", b"content-", b"x-request-id")
"""Headers, or their beginnings, that requests of a connection do not share with its handshake."""
_CUT_OFF: Final = b'{"error":'
"""Begin of the error that ends a stream at shutdown; all other events begin with their type."""
_FAILED: Final = b'{"type": "response.failed"'
_BYTES_PER_EVENT: Final = 1_024  # counted for each that waits, however short


class ResponsesSockets:
    """The WebSockets of a server, as the ASGI application of all of their paths."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._open: Counter[str] = Counter()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one connection."""
        socket = ResponsesSocket(scope, receive, send, self._settings, self._open)
        await socket.serve()


class ResponsesSocket:
    """One connection."""

    def __init__(self, scope: Scope, receive: Receive, send: Send, settings: Settings, opened: Counter[str]) -> None:
        self.kept: list[str] = []  # names of what is on the shelf as long as it is open
        self._scope, self._receive, self._send = scope, receive, send
        self._settings = settings
        self._opened = opened
        self._caller: str | None = None
        self._key: str | None = None
        self._events: asyncio.Queue[bytes | None] = asyncio.Queue()
        self._waiting_bytes = 0
        self._gone = asyncio.Event()

    def admit(self, request: Request) -> None:
        """Count the connection, or refuse it; called where its handshake has been admitted."""
        _check_origin(request, self._settings)
        name, most = request.state.caller.name, self._settings.websockets_per_key
        if self._opened[name] >= most:
            raise OverLimitError(
                f"{name} has {most:,} WebSockets open, its limit; close one, or raise QGUIDE_WEBSOCKETS_PER_KEY",
                code="too_many_at_once",
                limit=most,
                retry_after_s=1,
            )
        self._caller, self._key = name, request.state.account.key
        self._opened[name] += 1

    async def serve(self) -> None:
        """Open it, and answer its events until one side ends it."""
        await self._receive()  # `websocket.connect`
        reading: asyncio.Task[None] | None = None
        try:
            await self._ask("GET", b"", self._tell_handshake)
            if self._caller is not None:
                reading = asyncio.create_task(self._read())
                await self._answer_all()
        finally:
            if self._caller is not None:
                self._opened[self._caller] -= 1
                self._forget(self.kept)
            if reading is not None:
                reading.cancel()
                await asyncio.gather(reading, return_exceptions=True)

    def _forget(self, names: Sequence[str]) -> None:
        with open_account() as account:
            account.key = self._key
            self._scope["app"].state.stored.forget_open(names)

    async def _tell_handshake(self, message: Message) -> None:
        if self._caller is None:
            await self._send({"body": b"", **message, "type": f"websocket.{message['type']}"})
        elif message["type"] == "http.response.start":
            told = [pair for pair in message["headers"] if not pair[0].startswith(b"content-")]
            await self._send({"type": "websocket.accept", "headers": told})

    async def _read(self) -> None:
        """Take events, also while one is answered, until the client is gone or the server is."""
        while (message := await self._receive())["type"] == "websocket.receive":
            raw: bytes = message.get("bytes") or (message.get("text") or "").encode()
            size = len(raw) + _BYTES_PER_EVENT
            if self._waiting_bytes and self._waiting_bytes + size > self._settings.max_body_bytes:
                await self._refuse("too_many_at_once", "too many events wait for their turn", None)
            else:
                self._waiting_bytes += size
                self._events.put_nowait(raw)
        if message.get("code") != CloseCode.SERVICE_RESTART:  # else it is the server that ends
            self._gone.set()
        self._events.put_nowait(None)

    async def _answer_all(self) -> None:
        idle_s = self._settings.websocket_idle_s
        while not self._gone.is_set():
            try:
                async with asyncio.timeout(idle_s):
                    raw = await self._events.get()
            except TimeoutError:
                await self._tell({"code": CloseCode.NORMAL_CLOSURE, "reason": "idle"}, "close")
                return
            if raw is None:
                await self._tell({"code": CloseCode.SERVICE_RESTART}, "close")
                return
            self._waiting_bytes -= len(raw) + _BYTES_PER_EVENT
            await self._answer(raw)

    async def _answer(self, raw: bytes) -> None:
        state = self._scope["app"].state
        read = partial(_read_event, raw, most_values(self._settings.max_body_bytes))
        lane = previous = None
        try:
            long = is_long(raw)
            kind, lane, previous, raw = await state.long_bodies.work(self._caller, read) if long else read()
        except QGuideError:  # which the request will tell
            kind = _CREATE
        if kind == _CREATE:
            relay = _Relay(self._tell, lane)
            await self._ask("POST", raw, relay)
            if relay.failed and isinstance(previous, str):
                self._forget([row_of(previous)])
        elif kind != _READ:
            said = f"type is {str(kind)[:40]!r}; this server takes {_CREATE!r}"
            await self._refuse("unknown_event", said, "type")

    async def _ask(self, method: str, body: bytes, answer: Send) -> None:
        sent = False

        async def receive() -> Message:
            nonlocal sent
            if sent:
                await self._gone.wait()
                return {"type": "http.disconnect"}
            sent = True
            return {"type": "http.request", "body": body, "more_body": False}

        scope = {name: self._scope[name] for name in _KEPT if name in self._scope} | {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "method": method,
            "scheme": "https" if self._scope["scheme"] == "wss" else "http",
            "state": self._scope.get("state", {}) | {"socket": self},
            "headers": self._scope["headers"],
        }
        if method == "POST":
            scope["headers"] = [
                *(one for one in scope["headers"] if not one[0].startswith(_OF_HANDSHAKES)),
                (b"content-type", b"application/json"),
                (b"content-length", str(len(body)).encode()),
            ]
        await self._scope["app"](scope, receive, answer)

    async def _refuse(self, code: str, message: str, param: str | None) -> None:
        status, detail = openai_detail(Failure(400, code, message, param=param))
        event = {"type": "error", "status": status, "error": detail}
        await self._tell({"text": json.dumps(event)}, "send")

    async def _tell(self, message: Json, kind: str) -> None:
        """Send, unless the client is gone."""
        if not self._gone.is_set():
            try:
                await self._send({"type": f"websocket.{kind}"} | message)
            except OSError:
                self._gone.set()


class _Relay:
    """Sends the answer to one request as messages."""

    def __init__(self, tell: Callable[[Json, str], Awaitable[None]], lane: str | None) -> None:
        self._tell = tell
        self._more: Json = {} if lane is None else {"stream_id": lane}
        self._status = 0
        self._headers: dict[str, str] = {}
        self._rest = b""
        self.failed = False  # no response came of the request

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self._status = message["status"]
            self._headers = {k.decode(): v.decode("latin-1") for k, v in message["headers"]}
            return
        *events, self._rest = (self._rest + message.get("body", b"")).split(b"\n\n")
        for event in events:
            for line in event.split(b"\n"):
                if line.startswith(DATA):
                    await self._tell_event(line.removeprefix(DATA))
        if self._rest and not message.get("more_body", False):
            await self._tell_error(self._rest, self._status)

    async def _tell_error(self, body: bytes, status: int) -> None:
        self.failed = True
        error = json.loads(body)["error"]
        # OpenAI's SDK looks for headers in the error, Codex beside it.
        told = {"error": error | {"headers": self._headers}, "headers": self._headers}
        event = json.dumps({"type": "error", "status": status} | told)
        await self._tell_event(event.encode())

    async def _tell_event(self, event: bytes) -> None:
        if event.startswith(_CUT_OFF):
            await self._tell_error(event, 503)
            return
        self.failed |= event.startswith(_FAILED)
        if self._more:
            event = json.dumps(json.loads(event) | self._more).encode()
        await self._tell({"text": event.decode()}, "send")


def _read_event(raw: bytes, most: int) -> tuple[Any, str | None, Any, bytes]:
    """The type of an event, its `stream_id`, what it continues, and the body of its request."""
    event = parsed_json(raw, most)
    if not isinstance(event, dict):
        return None, None, None, raw
    kind, lane = event.pop("type", None), event.pop("stream_id", None)
    # As short as can be: escaped, a text that is as long as a body may be would be too long.
    body = json.dumps(event | {"stream": True}, ensure_ascii=False, separators=(",", ":"))
    return kind, lane, event.get("previous_response_id"), body.encode()


def _check_origin(request: Request, settings: Settings) -> None:
    """Refuse strangers' web pages, which browsers let open WebSockets to any server."""
    origin = request.headers.get("origin")
    if origin is None or origin.partition("://")[2] == request.headers.get("host"):
        return
    if not {origin, "*"} & {*settings.cors_origins}:
        raise ForbiddenError(f"a page of {origin[:100]!r} may not open a WebSocket here; add it to QGUIDE_CORS_ORIGINS")

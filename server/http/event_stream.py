"""Server-sent events of an answer that is still being made, and their OpenAPI schema."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from fastapi import Request
from fastapi.responses import JSONResponse, Response, StreamingResponse
from pydantic import BaseModel
from starlette.types import Receive, Scope, Send

from qguide.qnet.dialects.shapes import Json
from qguide.qnet.errors import QGuideError
from qguide.qnet.work import Outlet, flowing_to
from qguide.server.http.error_table import known_error_response, unknown_error_response

_FIRST_SIGN_S: Final = 1.0
"""Time for an error to have its own status; clients that wait longer for a first byte give up."""
_HEADERS: Final = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
DATA: Final = b"data: "
DONE: Final = b"data: [DONE]\n\n"
HEARTBEAT: Final = b": still working\n\n"
"""A comment that clients skip; it shows proxies that the connection is alive."""


def event(data: Mapping[str, Any], name: str = "") -> bytes:
    """One server-sent event."""
    head = f"event: {name}\n".encode() if name else b""
    written = json.dumps(data, ensure_ascii=False).encode(errors="replace")
    return head + DATA + written + b"\n\n"


def named_event(data: Mapping[str, Any]) -> bytes:
    """One server-sent event, whose name is its type."""
    return event(data, data["type"])


@dataclass(slots=True)
class EventWriter:
    """The events of one answer, in one dialect."""

    pieces: Callable[[Json], Iterable[Json]]  # of the answer, which is the body of the same request without a stream
    written: Callable[[Json], bytes] = event  # a piece, or an error's body, as an event
    sign: Callable[[], bytes] = lambda: HEARTBEAT  # of life; sent again and again until the answer is there
    end: bytes = b""
    passed: Callable[[Json], Json] | None = None  # a piece, from the part of a candidate that goes on as it comes

    def waiting(self) -> Iterable[bytes]:
        """A sign of life."""
        return (self.sign(),)

    def going_on(self, parts: Iterable[Json]) -> Iterator[bytes]:
        """Parts of a candidate that have just come."""
        return (self.written(self.passed(part)) for part in parts if self.passed)

    def finished(self, answer: Json) -> Iterator[bytes]:
        """The answer, and the end of the stream."""
        yield from map(self.written, self.pieces(answer))
        if self.end:
            yield self.end

    def failed(self, error: Json) -> Iterable[bytes]:
        """The error's body, after which nothing comes."""
        return (self.written(error),)


class EventStream(StreamingResponse):
    """Signs of life until the answer is there, then the events of the answer; or these while it is being drawn.

    A failure before the first byte has its own HTTP status; a later one is an event of the stream.

    The response owns the work. If the client disconnects, even before the first byte, the work is cancelled, and the
    response ends only after it, when its cost is known.
    """

    def __init__(
        self,
        request: Request,
        complete: Callable[[], Awaitable[Json]],
        writer: EventWriter,
        *,
        media_type: str = "text/event-stream",
    ) -> None:
        super().__init__(self._events(), media_type=media_type, headers=_HEADERS)
        self._request = request
        self._complete = complete
        self._writer = writer
        self._heartbeat_s: float = request.app.state.settings.heartbeat_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Do the work and send its result."""
        self._outlet = Outlet(min(self._heartbeat_s, _FIRST_SIGN_S), takes_pieces=self._writer.passed is not None)
        with flowing_to(self._outlet):
            self._work = asyncio.ensure_future(self._complete())
        self._work.add_done_callback(lambda _: self._outlet.wake())
        try:
            await self._outlet.silence()
            if self._work.done():
                self._work.result()
            await super().__call__(scope, receive, send)
        finally:
            self._work.cancel()
            await asyncio.gather(self._work, return_exceptions=True)

    async def _events(self) -> AsyncIterator[bytes]:
        try:
            while (parts := self._outlet.take()) or not self._work.done():
                yield b"".join(self._writer.going_on(parts) if parts else self._writer.waiting())
                if not self._work.done():
                    await self._outlet.wait(self._heartbeat_s)
            last = [*self._writer.finished(self._work.result())]
        except QGuideError as error:
            last = [*self._writer.failed(_body(known_error_response(self._request, error)))]
        except Exception as error:  # the stream has begun, so no one above can still answer
            last = [*self._writer.failed(_body(unknown_error_response(self._request, error)))]
        for written in last:
            yield written


class OutlivingStream(EventStream):
    """Events of an answer whose work goes on when its client is gone.

    Its request says so (`request.state.outlives_client`).
    """

    def __init__(self, *args: Any, work: Callable[[], Awaitable[None]], **options: Any) -> None:
        super().__init__(*args, **options)
        self._outliving = work  # makes what `complete` waits for

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Do the work, tell the events to a client that listens, and end with the work."""
        work = asyncio.ensure_future(self._outliving())
        try:
            await super().__call__(scope, receive, send)
            await work
        finally:
            work.cancel()
            await asyncio.gather(work, return_exceptions=True)


async def answered(request: Request, complete: Callable[[], Awaitable[Json]], writer: EventWriter | None) -> Response:
    """The answer as JSON, or where there is a writer as its events."""
    if writer is None:
        return JSONResponse(await complete())
    return EventStream(request, complete, writer)


def _body(response: JSONResponse) -> Json:
    read: Json = json.loads(bytes(response.body))
    return read


def described_errors(body: type[BaseModel], statuses: Iterable[int]) -> dict[int | str, dict[str, Any]]:
    """Error responses of a route for the OpenAPI document, which has the body's schema by name.

    As models they would be validators, 600 for all routes, which FastAPI builds at the first request: a tenth of a
    second in which nobody is served.
    """
    schema = {"$ref": f"#/components/schemas/{body.__name__}"}
    return {status: {"content": {"application/json": {"schema": schema}}} for status in statuses}


def answer_or_events(
    answer: type[BaseModel] | type[list[Any]],
    event: type[BaseModel],
    *,
    description: str,
    event_description: str,
    named: bool = True,
) -> dict[str, Any]:
    """Status 200 of a route that answers in JSON or, with `stream`, in server-sent events."""
    data = {
        "type": "string",
        "contentMediaType": "application/json",
        "contentSchema": {"$ref": f"#/components/schemas/{event.__name__}"},
    }
    properties = {"event": {"type": "string"}, "data": data} if named else {"data": data}
    schema = {
        "description": event_description,
        "type": "object",
        "properties": properties,
        "required": list(properties),
    }
    return {"description": description, "model": answer, "content": {"text/event-stream": {"schema": schema}}}

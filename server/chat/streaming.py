"""Server-sent event stream of a completion that is still being made."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, Final

from fastapi import Request
from fastapi.responses import JSONResponse, StreamingResponse
from starlette.types import Receive, Scope, Send

from qnet.errors import QGuideError
from server.chat.chunks import DONE, HEARTBEAT, Json, chunks_of, event
from server.errors.table import known_error_response, unknown_error_response

_HEADERS: Final = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}


class CompletionStream(StreamingResponse):
    """Heartbeats until the decision is made, then the chunks of the chosen candidate.

    The response owns the work. If the client disconnects, even before the first byte, the work is
    cancelled, and the response ends only after it, when its cost is known.

    Args:
        complete: makes the completion; called when the response is sent.
        heartbeat_s: time between heartbeats. A failure before the first one has its own HTTP
            status; a later one is an event of the stream.
    """

    def __init__(
        self,
        request: Request,
        complete: Callable[[], Awaitable[Json]],
        *,
        include_usage: bool,
        heartbeat_s: float,
    ) -> None:
        super().__init__(self._events(), media_type="text/event-stream", headers=_HEADERS)
        self._request = request
        self._complete = complete
        self._include_usage = include_usage
        self._heartbeat_s = heartbeat_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Do the work and send its result.

        Raises:
            QGuideError: the work failed before anything was sent.
        """
        self._work = asyncio.ensure_future(self._complete())
        try:
            await asyncio.wait({self._work}, timeout=self._heartbeat_s)
            if self._work.done():
                self._work.result()
            await super().__call__(scope, receive, send)
        finally:
            self._work.cancel()
            await asyncio.gather(self._work, return_exceptions=True)

    async def _events(self) -> AsyncIterator[bytes]:
        try:
            while not self._work.done():
                yield HEARTBEAT
                await asyncio.wait({self._work}, timeout=self._heartbeat_s)
            for chunk in chunks_of(self._work.result(), include_usage=self._include_usage):
                yield event(chunk)
            yield DONE
        except QGuideError as error:
            yield event(_body(known_error_response(self._request, error)))
        except Exception as error:  # the stream has begun, so no one above can still answer
            yield event(_body(unknown_error_response(self._request, error)))


def _body(response: JSONResponse) -> dict[str, Any]:
    read: dict[str, Any] = json.loads(bytes(response.body))
    return read

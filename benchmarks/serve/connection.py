"""HTTP client of one connection, for load tests on the server's own machine.

A request through httpx takes as much CPU time as the server takes to answer it.
"""

import asyncio
from typing import Final
from urllib.parse import urlsplit

import httptools

_TIMEOUT_S: Final = 120.0
_HTTPS: Final = "https"


class Connection(asyncio.Protocol):
    """A connection that carries one request at a time, and is opened again after it was closed.

    Args:
        url: root URL of the server.
        timeout_s: for each answer.
    """

    def __init__(self, url: str, *, timeout_s: float = _TIMEOUT_S) -> None:
        self._timeout_s = timeout_s
        parts = urlsplit(url)
        self._tls = parts.scheme == _HTTPS
        self._host = parts.hostname or ""
        self._port = parts.port or (443 if self._tls else 80)
        self._root = parts.path.rstrip("/")
        self._name = parts.netloc.rpartition("@")[2]
        self._transport: asyncio.Transport | None = None
        self._parser: httptools.HttpResponseParser | None = None
        self._body = bytearray()
        self._answered: asyncio.Future[tuple[int, bytes]] | None = None

    async def post(self, path: str, body: bytes) -> tuple[int, bytes]:
        """Send a JSON body; returns status and body of the answer.

        Raises:
            OSError: the server cannot be reached, or closes the connection before its answer.
            TimeoutError: there is no answer in time.
        """
        try:
            async with asyncio.timeout(self._timeout_s):
                return await self._exchange(path, body)
        except TimeoutError:
            self._drop()
            raise

    async def _exchange(self, path: str, body: bytes) -> tuple[int, bytes]:
        if self._transport is None or self._transport.is_closing():
            await self._open()
        assert self._transport is not None
        self._parser = httptools.HttpResponseParser(self)
        self._body.clear()
        self._answered = asyncio.get_running_loop().create_future()
        head = (
            f"POST {self._root}{path} HTTP/1.1\r\nhost: {self._name}\r\naccept: */*\r\n"
            f"content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
        )
        self._transport.write(head.encode() + body)
        return await self._answered

    def _drop(self) -> None:
        """Close at once: a late answer would be taken for the next request's."""
        if self._transport is not None:
            self._transport.abort()

    def close(self) -> None:
        """Close the connection."""
        if self._transport is not None:
            self._transport.close()

    async def _open(self) -> None:
        self._transport, _ = await asyncio.get_running_loop().create_connection(
            lambda: self, self._host, self._port, ssl=True if self._tls else None
        )

    # asyncio's callbacks.

    def data_received(self, data: bytes) -> None:
        """Parse a piece of the answer."""
        assert self._parser is not None
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            self._fail(OSError(f"the answer is not HTTP ({type(error).__name__})"))

    def connection_lost(self, exc: Exception | None) -> None:
        """Fail a request that waits for its answer."""
        self._transport = None
        self._fail(exc or ConnectionResetError("the server closed the connection"))

    # The parser's callbacks.

    def on_body(self, body: bytes) -> None:
        """Keep a piece of the body."""
        self._body += body

    def on_message_complete(self) -> None:
        """Hand the answer over."""
        assert self._parser is not None
        if not self._parser.should_keep_alive():
            self.close()
        if self._answered and not self._answered.done():
            self._answered.set_result((self._parser.get_status_code(), bytes(self._body)))

    def _fail(self, error: Exception) -> None:
        if self._answered and not self._answered.done():
            self._answered.set_exception(error)

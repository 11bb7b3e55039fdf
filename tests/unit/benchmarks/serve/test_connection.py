"""The load test's connection: each answer is that of its own request."""

import asyncio
from contextlib import suppress

import pytest

from benchmarks.serve.connection import Connection


async def test_a_late_answer_is_not_taken_for_the_next_requests() -> None:
    late, closed = asyncio.Event(), asyncio.Semaphore(0)

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(asyncio.IncompleteReadError, ConnectionError):  # the client closes
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                body = await reader.readexactly(5)
                if b"/slow" in head:
                    await late.wait()
                writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\n" + body)
        writer.close()
        with suppress(ConnectionError):
            await writer.wait_closed()
        closed.release()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        connection = Connection(f"http://127.0.0.1:{port}", timeout_s=1.0)
        with pytest.raises(TimeoutError):
            await connection.post("/slow", b"first")
        late.set()
        assert await connection.post("/fast", b"other") == (200, b"other")
        connection.close()
        for _ in range(2):
            await asyncio.wait_for(closed.acquire(), 20)

"""Limits of the size of an upstream's answers."""

import asyncio
import gzip
import itertools
import json
import threading
import zlib
from contextlib import suppress
from typing import Any

import httpx
import pytest

from qguide.qnet.body_limits import MAX_CHUNKS, AnswerTooLargeError, BoundedBody
from qguide.qnet.errors import UpstreamError
from qguide.qnet.policies.answers import Completion, read_completion
from qguide.qnet.policies.openai_compatible import OpenAICompatiblePolicy
from qguide.qnet.types import Message, Sampling
from tests.support.upstream_policy import HISTORY, MIB, Body, answering


def gzipped(size: int) -> bytes:
    """A gzip stream of so many zeros; a thousandth of them in size."""
    packer = zlib.compressobj(wbits=31)
    return b"".join([*(packer.compress(bytes(MIB)) for _ in range(size // MIB)), packer.flush()])


@pytest.mark.parametrize("encoding", ["identity", "gzip"])
async def test_an_answer_above_the_limit_is_given_up_long_before_its_end(encoding: str) -> None:
    piece = bytes(MIB // 16) if encoding == "identity" else gzipped(64 * MIB)
    body = Body(itertools.repeat(piece, 1000))
    policy = answering(body, {"Content-Encoding": encoding})
    with pytest.raises(UpstreamError, match=r"than 1,048,576 bytes.*max_answer_bytes"):
        await policy.sample(HISTORY, n=1, sampling=Sampling())
    await policy.close()
    assert body.sent < 2 * MIB
    assert not policy.circuit_open, "the answer to one request shuts nobody out"


async def test_an_answer_of_very_many_values_is_not_parsed() -> None:
    policy = answering(Body([b'{"choices": [', b"[]," * (MIB // 8), b"0]}"]))
    with pytest.raises(UpstreamError, match=r"131,072 JSON .*max_answer_bytes"):
        await policy.sample(HISTORY, n=1, sampling=Sampling())
    await policy.close()


async def test_decompressing_an_answer_lets_others_go_on() -> None:
    completion = b'{"choices": [{"message": {"content": "go"}}]}'
    body = Body([gzip.compress(b" " * (MIB - 100) + completion)])
    policy = answering(body, {"Content-Encoding": "gzip"})
    others, done = 0, False

    async def go_on() -> None:
        nonlocal others
        while not done:
            others += 1
            await asyncio.sleep(0)

    running = asyncio.create_task(go_on())
    [drawn] = await policy.sample(HISTORY, n=1, sampling=Sampling())
    done = True
    await running
    await policy.close()
    assert drawn.message.content == "go"
    assert others >= MIB // (64 * 1024)


async def test_a_large_answer_is_parsed_on_another_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    threads: list[int] = []

    def read(answer: dict[str, Any]) -> Completion:
        threads.append(threading.get_ident())
        return read_completion(answer)

    monkeypatch.setattr("qguide.qnet.policies.upstream_dialects.read_completion", read)
    for padding in (0, MIB // 2):
        policy = answering(Body([b" " * padding, b'{"choices": [{"message": {"content": "go"}}]}']))
        assert await policy.sample(HISTORY, n=1, sampling=Sampling())
        await policy.close()
    small, large = threads
    assert small == threading.get_ident() != large


@pytest.mark.parametrize(
    ("sent", "headers", "said"),
    [
        pytest.param(b"{}", {"Content-Encoding": "br"}, "'br'; .*gzip", id="unknown"),
        pytest.param(b"{}", {"Content-Encoding": "gzip"}, r"\(DecodingError\)", id="broken"),
        pytest.param(gzip.compress(b"{}" * 99)[:-9], {"Content-Encoding": "gzip"}, r"\(DecodingError\)", id="cut off"),
    ],
)
async def test_an_answer_that_cannot_be_decompressed_says_so(sent: bytes, headers: dict[str, str], said: str) -> None:
    policy = answering(Body([sent]), headers)
    with pytest.raises(UpstreamError, match=said):
        await policy.sample(HISTORY, n=1, sampling=Sampling())
    await policy.close()


async def test_the_list_of_models_has_a_limit_too() -> None:
    policy = answering(Body(itertools.repeat(bytes(MIB // 16), 1000)))
    assert await policy.health_problem() == "answered with more than 1,048,576 bytes"
    await policy.close()


@pytest.mark.parametrize("kind", ["application/json", "text/event-stream"])
async def test_an_answer_in_endless_tiny_chunks_is_given_up_and_lets_others_go_on(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("qguide.qnet.body_limits._REST_S", 0)  # for other threads, not for this loop

    async def drip(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n")
        writer.write(f"Content-Type: {kind}\r\n\r\n".encode())
        with suppress(ConnectionError):
            while not writer.is_closing():
                writer.write(b"1\r\n \r\n" * 1_000)
                await writer.drain()

    others, done = 0, False

    async def go_on() -> None:
        nonlocal others
        while not done:
            others += 1
            await asyncio.sleep(0)

    server = await asyncio.start_server(drip, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    policy = OpenAICompatiblePolicy("drip", url=f"http://127.0.0.1:{port}/v1", model="fake-1")
    running = asyncio.create_task(go_on())
    with pytest.raises(UpstreamError, match=r"16,384 chunks; .*max_answer_bytes"):
        await policy.sample(HISTORY, n=1, sampling=Sampling())
    done = True
    await running
    await policy.close()
    server.close()
    assert others >= MAX_CHUNKS // 16


def test_a_stream_of_events_may_not_come_in_shorter_chunks_than_events() -> None:
    body = BoundedBody("", max_bytes=MIB, events=True)

    def drip(chunk: bytes, chunks: int) -> None:
        for _ in range(chunks):
            list(body.add(chunk))

    drip(b"data: 1\n\ndata: 2\n\n", 2 * MAX_CHUNKS)
    assert not body.drips
    with pytest.raises(AnswerTooLargeError, match="16,384 chunks"):
        drip(b" ", 2 * MAX_CHUNKS)


async def test_large_requests_of_one_step_are_written_one_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    turn = 0
    written: list[int] = []
    dumps = json.dumps

    def noted(body: object, **options: Any) -> str:
        written.append(turn)
        return dumps(body, **options)

    async def count_turns() -> None:
        nonlocal turn
        while True:
            turn += 1
            await asyncio.sleep(0)

    answer = b'{"choices": [{"message": {"content": "go"}}]}'
    transport = httpx.MockTransport(lambda _: httpx.Response(200, stream=Body([answer])))
    policy = OpenAICompatiblePolicy("demo", url="http://demo/v1", model="m", takes_n=False, transport=transport)
    monkeypatch.setattr("qguide.qnet.policies.upstream_http.json.dumps", noted)
    counting = asyncio.create_task(count_turns())
    history = (Message("user", "find the mug " * 10_000),)
    drawn = await policy.sample(history, n=8, sampling=Sampling())
    counting.cancel()
    await policy.close()
    assert len(drawn) == 8
    assert len(set(written)) == 8, "the event loop served others between two of them"

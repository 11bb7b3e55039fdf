"""Answers that come as streams: what upstreams of each dialect send, and what breaks off."""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Iterable
from typing import Any

import httpx
import pytest

from qguide.qnet.errors import (
    HistoryTooLongError,
    QGuideError,
    UpstreamBusyError,
    UpstreamError,
    UpstreamTimeoutError,
    UpstreamUnavailableError,
)
from qguide.qnet.policies.answer_parsing import events_in
from qguide.qnet.policies.openai_compatible import OpenAICompatiblePolicy
from qguide.qnet.policies.upstream_dialects import DialectName, build_dialect
from qguide.qnet.policies.upstream_settings import UpstreamLimits
from qguide.qnet.types import Candidate, Sampling, ToolCall
from qguide.qnet.work import collect_usage, total_of
from tests.support.upstream_policy import HISTORY, MIB, Body

EVENTS = {"content-type": "text/event-stream; charset=utf-8"}
DONE = b"data: [DONE]\n\n"
ENDED = {"type": "message_delta", "delta": {"stop_reason": "tool_use"}, "usage": {"output_tokens": 9}}


def sse(events: Iterable[Any]) -> list[bytes]:
    return [b"data: " + json.dumps(one).encode() + b"\n\n" for one in events]


def delta(index: int = 0, finish_reason: str | None = None, **fields: Any) -> dict[str, Any]:
    choice = {"index": index, "delta": fields, "finish_reason": finish_reason}
    return {"id": "c-1", "choices": [choice]}


def piece(index: int, kind: str, **fields: str) -> dict[str, Any]:
    content = {"type": f"{kind}_delta", **fields}
    return {"type": "content_block_delta", "index": index, "delta": content}


async def drawn(
    pieces: Iterable[bytes], *, dialect: DialectName = "chat", n: int = 1, limits: UpstreamLimits | None = None
) -> list[Candidate]:
    """Candidates of a policy whose upstream sends these pieces, once."""
    answer = httpx.Response(200, headers=EVENTS, stream=Body(pieces))
    policy = OpenAICompatiblePolicy(
        "demo",
        url="http://demo/v1",
        model="m",
        dialect=build_dialect(dialect),
        streams=True,
        limits=limits or UpstreamLimits(max_answer_bytes=MIB, retries=0),
        transport=httpx.MockTransport(lambda _: answer),
    )
    try:
        return await policy.sample(HISTORY, n=n, sampling=Sampling())
    finally:
        await policy.close()


async def test_chunks_of_several_choices_that_come_in_turns() -> None:
    chunks = [
        delta(0, role="assistant", content=""),
        delta(1, role="assistant", content=""),
        delta(0, reasoning_content="hm"),
        delta(1, content="sto"),
        delta(0, reasoning_content=", yes"),
        delta(0, content="go"),
        delta(1, content="p", finish_reason=None),
        delta(1, "length"),
        delta(0, "stop"),
        {"choices": [], "usage": {"prompt_tokens": 9, "completion_tokens": 4}},
    ]
    first, second = await drawn([b": comment\n\n", *sse(chunks), DONE], n=2)
    assert [first.message.content, second.message.content] == ["go", "stop"]
    assert (first.message.wire or {})["reasoning_content"] == "hm, yes"
    assert [first.finished, second.finished] == [True, False]
    assert first.spent
    assert (first.spent.prompt_tokens, first.spent.completion_tokens) == (9, 4)


async def test_chunks_of_calls_whose_arguments_come_in_pieces() -> None:
    def called(index: int, **function: str) -> dict[str, Any]:
        return {"index": index, "function": function}

    chunks = [
        delta(role="assistant", content=None),
        delta(tool_calls=[called(0, name="go", arguments="") | {"id": "a", "type": "function"}]),
        delta(tool_calls=[called(0, arguments='{"to":')]),
        delta(tool_calls=[called(0, arguments=' "desk"}', name="go")]),
        delta(tool_calls=[called(1, name="look", arguments="{}") | {"id": "b"}]),
        delta(finish_reason="tool_calls"),
    ]
    [candidate] = await drawn(sse(chunks))
    assert candidate.message.tool_calls == (ToolCall("go", '{"to": "desk"}', "a"), ToolCall("look", "{}", "b"))
    assert candidate.finish_reason == "tool_calls"


async def test_events_of_a_message_with_thoughts_text_and_a_call() -> None:
    usage = {"input_tokens": 7, "cache_read_input_tokens": 2, "output_tokens": 1}
    thought = {"type": "thinking", "thinking": "", "signature": ""}
    call = {"type": "tool_use", "id": "t-1", "name": "go", "input": {}}
    events = [
        {"type": "message_start", "message": {"id": "m", "content": [], "usage": usage}},
        {"type": "ping"},
        {"type": "content_block_start", "index": 0, "content_block": thought},
        {"type": "content_block_delta", "index": 0, "delta": {"type": "thinking_delta", "thinking": "hm"}},
        {"type": "content_block_delta", "index": 0, "delta": {"type": "signature_delta", "signature": "s"}},
        {"type": "content_block_stop", "index": 0},
        {"type": "content_block_start", "index": 1, "content_block": {"type": "text", "text": ""}},
        piece(1, "text", text="I "),
        piece(1, "text", text="go."),
        {"type": "content_block_start", "index": 2, "content_block": call},
        {"type": "content_block_delta", "index": 2, "delta": {"type": "input_json_delta", "partial_json": '{"to":'}},
        {"type": "content_block_delta", "index": 2, "delta": {"type": "input_json_delta", "partial_json": '"desk"}'}},
        ENDED,
        {"type": "message_stop"},
    ]
    [candidate] = await drawn(sse(events), dialect="messages")
    assert candidate.message.content == "I go."
    assert candidate.message.tool_calls == (ToolCall("go", '{"to": "desk"}', "t-1"),)
    assert candidate.finish_reason == "tool_calls"
    assert candidate.spent
    assert (candidate.spent.prompt_tokens, candidate.spent.completion_tokens) == (9, 9)
    assert candidate.native
    assert candidate.native.body["content"][0] == thought | {"thinking": "hm", "signature": "s"}


async def test_the_last_event_of_a_response_has_all_of_it() -> None:
    text = {"type": "output_text", "text": "go"}
    whole = {"status": "completed", "output": [{"type": "message", "content": [text]}]}
    events = [
        {"type": "response.created", "response": {"status": "in_progress", "output": []}},
        {"type": "response.output_text.delta", "delta": "go"},
        {"type": "response.completed", "response": whole},
    ]
    [candidate] = await drawn(sse(events), dialect="responses")
    assert candidate.message.content == "go"


@pytest.mark.parametrize(
    ("dialect", "events"),
    [
        ("chat", [delta(content="go")]),
        ("messages", [{"type": "message_start", "message": {"content": []}}]),
        ("responses", [{"type": "response.created", "response": {"status": "in_progress"}}]),
    ],
)
async def test_a_stream_that_breaks_off_is_no_answer(dialect: DialectName, events: Any) -> None:
    with pytest.raises(UpstreamUnavailableError, match=r"demo .*answer$") as raised:
        await drawn(sse(events), dialect=dialect)
    assert raised.value.retriable


@pytest.mark.parametrize(
    ("dialect", "event", "kind", "said", "retriable"),
    [
        (
            "chat",
            {"error": {"message": "a secret", "type": "server_error"}},
            UpstreamUnavailableError,
            r"\(server_error\)$",
            True,
        ),
        (
            "messages",
            {"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}},
            UpstreamUnavailableError,
            r"\(overloaded_error\)$",
            True,
        ),
        (
            "chat",
            {"error": {"message": "too long", "code": "context_length_exceeded"}},
            HistoryTooLongError,
            "demo .*: .*long",
            False,
        ),
        ("chat", {"error": "what"}, UpstreamUnavailableError, "error$", False),
        (
            "responses",
            {"type": "error", "code": "server_error", "message": "a secret", "param": None},
            UpstreamUnavailableError,
            r"\(server_error\)$",
            True,
        ),
        (
            "responses",
            {"type": "response.failed", "response": {"status": "failed", "error": {"code": "rate_limit_exceeded"}}},
            UpstreamBusyError,
            "demo takes no more",
            True,
        ),
        (
            "gemini",
            {"error": {"message": "a secret", "code": 429, "status": "RESOURCE_EXHAUSTED"}},
            UpstreamBusyError,
            "demo takes no more",
            True,
        ),
        (
            "messages",
            {"type": "error", "error": {"type": "rate_limit_error", "message": "a secret"}},
            UpstreamBusyError,
            "demo takes no more",
            True,
        ),
    ],
)
async def test_an_error_inside_a_stream(
    dialect: DialectName, event: Any, kind: type[QGuideError], said: str, retriable: bool
) -> None:
    with pytest.raises(kind, match=said) as raised:
        await drawn(sse([delta(content="go"), event]), dialect=dialect)
    assert getattr(raised.value, "retriable", False) is retriable


@pytest.mark.parametrize("body", [b"", b"data: {\n\n", b"data: [1]\n\n", b"<html>"])
async def test_what_is_no_stream_of_the_dialect(body: bytes) -> None:
    with pytest.raises(UpstreamError, match=r"demo .*completion"):
        await drawn([body])


async def test_a_stream_without_end_is_given_up() -> None:
    endless = (piece for _ in iter(int, 1) for piece in sse([delta(content="x" * 1000)]))
    with pytest.raises(UpstreamError, match=r"4,194,304 bytes; .*max_answer_bytes"):
        await drawn(endless)


async def test_pieces_of_one_byte_are_read_with_others_served_between() -> None:
    body = b"".join([*sse([delta(content="go" * 500), delta(finish_reason="stop")]), DONE])
    [candidate] = await drawn([body[i : i + 1] for i in range(len(body))])
    assert candidate.message.content == "go" * 500


async def test_the_limit_is_the_silence_and_not_the_whole_time() -> None:
    silent, over = asyncio.Event(), asyncio.Event()
    serving: list[asyncio.Task[Any]] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task
        serving.append(task)
        await reader.readuntil(b"\r\n\r\n")
        head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n"
        writer.write(head)
        if silent.is_set():
            await over.wait()
        else:
            for written in sse([delta(content="go ") for _ in range(9)]):
                writer.write(written)
                await asyncio.sleep(0.08)
            writer.write(b"".join([*sse([delta(finish_reason="stop")]), DONE]))
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    limits = UpstreamLimits(timeout_s=0.6, retries=0)
    policy = OpenAICompatiblePolicy("demo", url=f"http://127.0.0.1:{port}", model="m", streams=True, limits=limits)
    async with server:
        [candidate] = await policy.sample(HISTORY, n=1, sampling=Sampling())
        assert candidate.message.content == "go " * 9
        silent.set()
        with pytest.raises(UpstreamTimeoutError, match=r"demo .* 0\.6 s; .*timeout_s"):
            await policy.sample(HISTORY, n=1, sampling=Sampling())
        await policy.close()
        over.set()
        await asyncio.gather(*serving)


CALL = {"index": 0, "id": "c", "function": {"name": "f", "arguments": ""}}
BLOCKS = [{"type": "text", "text": ""}, {"type": "tool_use", "id": "c", "name": "f", "input": {}}]
MESSAGE: list[Any] = [
    {"type": "message_start", "message": {"role": "assistant"}},
    *({"type": "content_block_start", "index": at, "content_block": block} for at, block in enumerate(BLOCKS)),
]
STREAMS: dict[DialectName, tuple[list[Any], Any, list[Any]]] = {
    "chat": (
        [delta(content="", tool_calls=[CALL])],
        lambda text: delta(content=text, tool_calls=[{"index": 0, "function": {"arguments": text}}]),
        [delta(finish_reason="stop")],
    ),
    "gemini": (
        [],
        lambda text: {"candidates": [{"content": {"parts": [{"text": text}]}}]},
        [{"candidates": [{"finishReason": "STOP"}]}],
    ),
    "messages": (
        MESSAGE,
        lambda text: piece(0, "text", text=text) | piece(1, "input_json", partial_json=text),
        [ENDED, {"type": "message_stop"}],
    ),
}


@pytest.mark.parametrize("dialect", STREAMS)
def test_a_stream_of_very_many_pieces_is_put_together_in_linear_time(dialect: DialectName) -> None:
    opening, going_on, end = STREAMS[dialect]
    events = [*opening, *(going_on(f"{number:04}" * 60) for number in range(40_000)), *end]
    began = time.thread_time()
    whole = build_dialect(dialect).assembled(events)
    took_s = time.thread_time() - began
    said = json.dumps(whole)
    assert said.count("0000" * 60 + "0001" * 60) >= 1
    assert len(said) > 40_000 * 240
    assert took_s < 3  # 0.1; copies of the whole for each piece, 190 GB, take longer


def test_events_are_read_whatever_their_lines_end_with() -> None:
    body = b'event: x\r\ndata: {"a": 1}\r\n\r\ndata:{"b": 2}\n\ndata: [DONE]\n\n'
    assert list(events_in(body)) == [{"a": 1}, {"b": 2}, {}]


@pytest.mark.parametrize(
    ("dialect", "first", "told"),
    [
        ("messages", {"type": "message_start", "message": {"usage": {"input_tokens": 9, "output_tokens": 1}}}, (9, 1)),
        ("gemini", {"candidates": [], "usageMetadata": {"promptTokenCount": 9, "thoughtsTokenCount": 2}}, (9, 2)),
        ("chat", delta(content="Hm"), (0, 0)),  # which tells it at the end alone
    ],
)
async def test_a_stream_that_is_given_up_costs_what_it_has_told(
    dialect: DialectName, first: dict[str, Any], told: tuple[int, int]
) -> None:
    begun = asyncio.Event()

    class Endless(Body):
        async def __aiter__(self) -> AsyncIterator[bytes]:
            yield sse([first])[0]
            begun.set()
            await asyncio.sleep(60)

    answer = httpx.Response(200, headers=EVENTS, stream=Endless(()))
    policy = OpenAICompatiblePolicy(
        "demo",
        url="http://demo/v1",
        model="m",
        dialect=build_dialect(dialect),
        streams=True,
        transport=httpx.MockTransport(lambda _: answer),
    )
    with collect_usage() as answered:
        draw = asyncio.ensure_future(policy.sample(HISTORY, n=1, sampling=Sampling()))
        await begun.wait()
        draw.cancel()
        await asyncio.gather(draw, return_exceptions=True)
    spent = total_of(answered)
    assert (spent.prompt_tokens, spent.completion_tokens) == told
    await policy.close()

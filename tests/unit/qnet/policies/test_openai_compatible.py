"""The policy behind an OpenAI-compatible server, against the fake that ships."""

import asyncio
import gzip
import itertools
import socket
import threading
import zlib
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from typing import Any

import httpx
import pytest
import stamina

from qnet.errors import (
    InvalidCandidatesError,
    InvalidRequestError,
    UpstreamError,
    UpstreamRefusedError,
    UpstreamTimeoutError,
    UpstreamUnavailableError,
)
from qnet.policies.openai_compatible import OpenAICompatiblePolicy, UpstreamLimits
from qnet.policies.openai_schema import Completion, read_completion
from qnet.policies.usage_ledger import collect_usage
from qnet.types import Candidate, History, Message, Sampling, TokenUsage, ToolCall
from server.chat.fake_openai import DEFAULT_REPLIES, FakeUpstream

HISTORY: History = (Message("system", "be brief"), Message("user", "find the mug"))
MIB = 1024**2
QUICK = UpstreamLimits(timeout_s=2.0, retries=1, longest_wait_s=2.0, breaker_failures=2)
TOOL = {
    "type": "function",
    "function": {
        "name": "go",
        "parameters": {"type": "object", "properties": {"to": {"enum": ["desk", "shelf"]}}},
    },
}


@pytest.fixture
def connect(address: tuple[FakeUpstream, str]) -> Any:
    @asynccontextmanager
    async def connected(**more: Any) -> AsyncIterator[OpenAICompatiblePolicy]:
        given: dict[str, Any] = {
            "url": address[1],
            "model": "fake",
            "limits": QUICK,
            "api_key": "secret",
        }
        policy = OpenAICompatiblePolicy("demo", **(given | more))
        try:
            yield policy
        finally:
            await policy.close()

    return connected


def said(candidates: list[Candidate]) -> list[str]:
    return [candidate.message.content for candidate in candidates]


class Body(httpx.AsyncByteStream):
    """An answer's body, in the pieces in which it arrives."""

    def __init__(self, pieces: Iterable[bytes]) -> None:
        self.pieces = iter(pieces)
        self.sent = 0

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for piece in self.pieces:
            self.sent += len(piece)
            await asyncio.sleep(0)
            yield piece


def answering(
    body: Body, headers: Mapping[str, str] | None = None, *, status: int = 200
) -> OpenAICompatiblePolicy:
    """A policy whose upstream gives this answer, once."""
    raw = [(name.encode(), value.encode()) for name, value in (headers or {}).items()]
    answer = httpx.Response(status, headers=raw, stream=body)
    transport = httpx.MockTransport(lambda _: answer)
    limits = UpstreamLimits(max_answer_bytes=MIB, retries=0, breaker_failures=1)
    return OpenAICompatiblePolicy(
        "demo", url="http://demo/v1", model="m", limits=limits, transport=transport
    )


async def test_candidates_come_from_one_request(connect: Any, upstream: FakeUpstream) -> None:
    async with connect() as policy:
        drawn = await policy.sample(HISTORY, n=3, sampling=Sampling(seed=0, max_tokens=9))
    assert said(drawn) == list(DEFAULT_REPLIES)
    [asked] = upstream.asked
    assert asked == {
        "model": "fake",
        "messages": [
            {"role": "system", "content": "be brief"},
            {"role": "user", "content": "find the mug"},
        ],
        "n": 3,
        "temperature": 0.7,
        "max_tokens": 9,
        "seed": 0,
    }
    assert upstream.keys == ["Bearer secret"]


async def test_usage_is_the_upstreams(connect: Any, upstream: FakeUpstream) -> None:
    async with connect() as policy:
        drawn = await policy.sample(HISTORY, n=3, sampling=Sampling())
    words = sum(len(reply.split()) for reply in DEFAULT_REPLIES)
    spent = drawn[0].spent
    assert spent is not None
    assert (spent.prompt_tokens, spent.completion_tokens, spent.cached_tokens) == (5, words, 2)
    assert [candidate.spent for candidate in drawn[1:]] == [None, None]
    assert sum(candidate.completion_tokens for candidate in drawn) == words


async def test_other_parameters_are_passed_on_and_unset_ones_left_out(
    connect: Any, upstream: FakeUpstream
) -> None:
    parameters = {"top_k": 3, "tools": [TOOL], "note": "\ud800"}
    sampling = Sampling(temperature=None, max_tokens=None, parameters=parameters)
    async with connect() as policy:
        [drawn] = await policy.sample(HISTORY, n=1, sampling=sampling)
    [asked] = upstream.asked
    assert {k: v for k, v in asked.items() if k not in ("model", "messages")} == parameters
    assert drawn.message.tool_calls == (ToolCall("go", '{"to": "desk"}'),)
    assert drawn.message.content == ""
    assert drawn.finish_reason == "tool_calls"


async def test_tool_turns_are_sent_as_they_came(connect: Any, upstream: FakeUpstream) -> None:
    call = Message("assistant", "", (ToolCall("go", '{"to":"desk"}', "call_9"),))
    wire = {"role": "tool", "content": "a mug", "tool_call_id": "call_9", "name": "go"}
    result = Message("tool", "a mug", (), "call_9", wire)
    async with connect() as policy:
        await policy.sample((*HISTORY, call, result), n=1, sampling=Sampling())
    function = {"name": "go", "arguments": '{"to":"desk"}'}
    assert upstream.asked[0]["messages"][2:] == [
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"id": "call_9", "type": "function", "function": function}],
        },
        wire,
    ]


async def test_the_greedy_candidate_is_a_request_of_its_own(
    connect: Any, upstream: FakeUpstream
) -> None:
    async with connect() as policy:
        drawn = await policy.sample(HISTORY, n=3, sampling=Sampling(first_greedy=True))
        assert len(drawn) == 3
        asked = {(body["temperature"], body.get("n", 1)) for body in upstream.asked}
        assert asked == {(0.0, 1), (0.7, 2)}
        await policy.sample(HISTORY, n=1, sampling=Sampling(first_greedy=True))
    assert upstream.asked[-1]["temperature"] == 0.0


async def test_parallel_requests_count_the_seed_up(connect: Any, upstream: FakeUpstream) -> None:
    async with connect(takes_n=False) as policy:
        drawn = await policy.sample(HISTORY, n=3, sampling=Sampling(seed=0))
    assert said(drawn) == list(DEFAULT_REPLIES)
    assert sorted(body["seed"] for body in upstream.asked) == [0, 1, 2]
    assert not any("n" in body for body in upstream.asked)
    assert all(candidate.spent for candidate in drawn)


@pytest.mark.parametrize(
    ("seed", "sent"), [(2**63 - 2, [-(2**63), 2**63 - 2, 2**63 - 1]), (-1, [-1, 0, 1])]
)
async def test_a_seed_is_counted_up_within_what_upstreams_take(
    connect: Any, upstream: FakeUpstream, seed: int, sent: list[int]
) -> None:
    async with connect(takes_n=False) as policy:
        await policy.sample(HISTORY, n=3, sampling=Sampling(seed=seed))
    assert sorted(body["seed"] for body in upstream.asked) == sent


@pytest.mark.parametrize(("fault", "first"), [("ignore_n", [3]), ("refuse_n", [3, 1])])
async def test_an_upstream_without_n_is_asked_in_parallel_from_then_on(
    connect: Any, upstream: FakeUpstream, fault: Any, first: list[int]
) -> None:
    upstream.fault = fault
    async with connect() as policy:
        for _ in range(2):
            assert len(await policy.sample(HISTORY, n=3, sampling=Sampling())) == 3
    assert [body.get("n", 1) for body in upstream.asked] == [*first, 1, 1, 1, 1, 1]


@pytest.mark.parametrize("fault", ["429", "503"])
async def test_what_passes_is_asked_again(connect: Any, upstream: FakeUpstream, fault: Any) -> None:
    upstream.fault, upstream.faults_left = fault, 1
    async with connect() as policy:
        started = asyncio.get_running_loop().time()
        assert len(await policy.sample(HISTORY, n=2, sampling=Sampling())) == 2
        waited_s = asyncio.get_running_loop().time() - started
    assert len(upstream.asked) == 2
    assert waited_s >= (1.0 if fault == "429" else 0.0)


async def test_retries_of_many_callers_do_not_come_at_once(
    connect: Any, upstream: FakeUpstream
) -> None:
    upstream.fault = "503"
    waits: list[float] = []
    hooks = stamina.instrumentation.get_on_retry_hooks()
    stamina.instrumentation.set_on_retry_hooks([lambda details: waits.append(details.wait_for)])
    try:
        async with connect(limits=UpstreamLimits(retries=1, breaker_failures=99)) as policy:
            drawing = [policy.sample(HISTORY, n=1, sampling=Sampling()) for _ in range(6)]
            await asyncio.gather(*drawing, return_exceptions=True)
    finally:
        stamina.instrumentation.set_on_retry_hooks(hooks)
    assert len(waits) == len(set(waits)) == 6
    assert all(0.1 <= wait_s <= 0.2 for wait_s in waits)


async def test_an_answer_that_is_lost_half_way_is_asked_for_again() -> None:
    whole = b'{"choices": [{"message": {"role": "assistant", "content": "go"}}]}'
    asked: list[bytes] = []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.append(await reader.readuntil(b"\r\n\r\n"))
        said = whole if len(asked) > 1 else whole[:20]
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(whole), said))
        await writer.drain()
        writer.close()
        await writer.wait_closed()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        policy = OpenAICompatiblePolicy(
            "demo", url=f"http://127.0.0.1:{port}/v1", model="m", limits=QUICK
        )
        drawn = await policy.sample(HISTORY, n=1, sampling=Sampling())
        await policy.close()
    assert said(drawn) == ["go"]
    assert len(asked) == 2


@pytest.mark.parametrize(
    ("fault", "kind", "requests", "message"),
    [
        ("429", UpstreamUnavailableError, 2, "takes no more requests now"),
        ("503", UpstreamError, 2, "answered with 503"),
        ("500", UpstreamError, 1, "answered with 500"),
        ("401", UpstreamError, 1, "refused this server's key with 401"),
        ("garbage", UpstreamError, 1, "did not answer with a chat completion"),
        ("hang", UpstreamTimeoutError, 1, "was silent for 2 s"),
    ],
)
async def test_failures_name_the_upstream_and_no_secret(
    connect: Any, upstream: FakeUpstream, fault: Any, kind: Any, requests: int, message: str
) -> None:
    upstream.fault = fault
    async with connect() as policy:
        with pytest.raises(UpstreamError, match=message) as raised:
            await policy.sample(HISTORY, n=2, sampling=Sampling())
    assert type(raised.value) is kind
    assert "upstream demo" in str(raised.value)
    assert "secret" not in str(raised.value)
    assert len(upstream.asked) == requests


async def test_a_longer_wait_than_allowed_is_handed_to_the_caller(
    connect: Any, upstream: FakeUpstream
) -> None:
    upstream.fault = "429"
    limits = UpstreamLimits(longest_wait_s=0.5)
    async with connect(limits=limits) as policy:
        with pytest.raises(UpstreamUnavailableError) as raised:
            await policy.sample(HISTORY, n=1, sampling=Sampling())
    assert raised.value.retry_after_s == 1.0
    assert len(upstream.asked) == 1


@pytest.mark.parametrize(
    ("header", "least_s", "most_s"),
    [
        pytest.param("7", 7.0, 7.0, id="seconds"),
        pytest.param("0.5", 0.5, 0.5, id="a part of a second"),
        pytest.param("9" * 400, 86_400.0, 86_400.0, id="more than a float holds"),
        pytest.param("1e999", None, None, id="an exponent"),
        pytest.param("-3", None, None, id="negative"),
        pytest.param("nan", None, None, id="NaN"),
        pytest.param("inf", None, None, id="infinity"),
        pytest.param("soon", None, None, id="a word"),
        pytest.param("\u0663", None, None, id="a digit beyond ASCII"),
        pytest.param("Sat, 01 Jan 2000 00:00:00 GMT", 0.0, 0.0, id="a date in the past"),
        pytest.param("Fri, 31 Dec 9999 23:59:59 GMT", 86_400.0, 86_400.0, id="a far date"),
        pytest.param("Fri, 31 Dec 99999 23:59:59 GMT", None, None, id="a year too far"),
        pytest.param("Fri, 31 Dec 2026 23:59:59 +9999999999", None, None, id="a zone too far"),
        pytest.param(f"Fri, {'9' * 30} Dec 2026 23:59:59", None, None, id="a day too far"),
        pytest.param(
            format_datetime(datetime.now(UTC) + timedelta(hours=1), usegmt=True),
            60.0,
            3600.0,
            id="a date",
        ),
    ],
)
async def test_retry_after_is_read_in_every_shape_and_is_never_too_large_to_answer(
    header: str, least_s: float | None, most_s: float | None
) -> None:
    policy = answering(Body([b"{}"]), {"Retry-After": header}, status=429)
    with pytest.raises(UpstreamUnavailableError) as raised:
        await policy.sample(HISTORY, n=1, sampling=Sampling())
    await policy.close()
    wait_s = raised.value.retry_after_s
    if least_s is None or most_s is None:
        assert wait_s is None
    else:
        assert wait_s is not None
        assert least_s <= wait_s <= most_s


async def test_a_wrong_request_is_the_callers_with_the_upstreams_reason(
    connect: Any, upstream: FakeUpstream
) -> None:
    async with connect() as policy:
        with pytest.raises(UpstreamRefusedError, match="demo refused: messages is empty"):
            await policy.sample((), n=2, sampling=Sampling())


async def test_nobody_there_is_unavailable() -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    policy = OpenAICompatiblePolicy(
        "gone", url=f"http://127.0.0.1:{port}/v1", model="m", limits=QUICK
    )
    with pytest.raises(UpstreamUnavailableError, match="gone cannot be reached") as raised:
        await policy.sample(HISTORY, n=1, sampling=Sampling())
    assert str(port) not in str(raised.value)
    await policy.close()


async def test_an_upstream_that_keeps_failing_is_left_alone_then_tried_once(
    connect: Any, upstream: FakeUpstream
) -> None:
    upstream.fault = "500"
    limits = UpstreamLimits(breaker_failures=2, breaker_open_s=2.0)
    async with connect(limits=limits) as policy:
        for _ in range(2):
            with pytest.raises(UpstreamError, match="500"):
                await policy.sample(HISTORY, n=1, sampling=Sampling())
        with pytest.raises(UpstreamUnavailableError, match="failed 2 times in a row") as raised:
            await policy.sample(HISTORY, n=1, sampling=Sampling())
        assert raised.value.retry_after_s == pytest.approx(1.0, abs=1.0)
        assert len(upstream.asked) == 2
        upstream.fault = ""
        await asyncio.sleep(2.1)
        assert await policy.sample(HISTORY, n=1, sampling=Sampling())


@pytest.mark.parametrize(
    ("takes_n", "sampling"),
    [
        pytest.param(True, Sampling(first_greedy=True), id="a greedy candidate of its own"),
        pytest.param(False, Sampling(), id="n: parallel"),
        pytest.param(False, Sampling(first_greedy=True), id="both"),
    ],
)
async def test_a_draw_of_several_requests_closes_the_circuit_of_an_upstream_that_is_well_again(
    connect: Any, upstream: FakeUpstream, takes_n: bool, sampling: Sampling
) -> None:
    upstream.fault = "500"
    limits = UpstreamLimits(breaker_failures=2, breaker_open_s=2.0)
    async with connect(limits=limits, takes_n=takes_n) as policy:
        for _ in range(2):
            with pytest.raises(UpstreamError, match="500"):
                await policy.sample(HISTORY, n=1, sampling=Sampling())
        upstream.fault = ""
        await asyncio.sleep(2.1)
        assert policy.circuit_open
        assert len(await policy.sample(HISTORY, n=3, sampling=sampling)) == 3
        assert not policy.circuit_open


async def test_completions_that_are_too_long_shut_nobody_out_while_others_are_answered(
    connect: Any, upstream: FakeUpstream
) -> None:
    upstream.fault, upstream.faults_left = "hang", 3
    async with connect(limits=UpstreamLimits(timeout_s=3.0, breaker_failures=2)) as policy:
        long = [policy.sample(HISTORY, n=1, sampling=Sampling()) for _ in range(3)]
        hanging = [asyncio.ensure_future(draw) for draw in long]
        while len(upstream.asked) < 3:
            await asyncio.sleep(0.01)
        assert await policy.sample(HISTORY, n=1, sampling=Sampling())
        for draw in hanging:
            with pytest.raises(UpstreamTimeoutError):
                await draw
        assert await policy.sample(HISTORY, n=1, sampling=Sampling())


async def test_an_answer_that_makes_no_sense_to_one_shuts_nobody_out(
    connect: Any, upstream: FakeUpstream
) -> None:
    async with connect(limits=UpstreamLimits(breaker_failures=2)) as policy:
        upstream.fault = "empty"
        for _ in range(3):
            with pytest.raises(UpstreamError, match="did not answer with a chat completion"):
                await policy.sample(HISTORY, n=1, sampling=Sampling())
        upstream.fault = ""
        assert await policy.sample(HISTORY, n=1, sampling=Sampling())


async def test_garbage_shuts_an_upstream(connect: Any, upstream: FakeUpstream) -> None:
    upstream.fault = "garbage"
    async with connect(limits=UpstreamLimits(breaker_failures=1)) as policy:
        for said in ("did not answer with a chat completion", "failed 1 times in a row"):
            with pytest.raises(UpstreamError, match=said):
                await policy.sample(HISTORY, n=1, sampling=Sampling())


async def test_custom_tools_are_called(connect: Any, upstream: FakeUpstream) -> None:
    tool = {"type": "custom", "custom": {"name": "shell"}}
    sampling = Sampling(parameters={"tools": [tool]})
    async with connect(limits=UpstreamLimits(breaker_failures=1)) as policy:
        [drawn] = await policy.sample(HISTORY, n=1, sampling=sampling)
        [call] = drawn.message.tool_calls
        assert (call.name, call.arguments, call.kind) == ("shell", "input 0", "custom")
        result = Message("tool", "done", (), call.id)
        await policy.sample((*HISTORY, drawn.message, result), n=1, sampling=sampling)
    assert upstream.asked[1]["messages"][2]["tool_calls"] == [
        {"id": call.id, "type": "custom", "custom": {"name": "shell", "input": "input 0"}}
    ]


async def test_a_busy_upstream_is_not_a_broken_one(connect: Any, upstream: FakeUpstream) -> None:
    upstream.fault = "429"
    async with connect(limits=UpstreamLimits(retries=0, breaker_failures=1)) as policy:
        for _ in range(3):
            with pytest.raises(UpstreamUnavailableError, match="takes no more requests"):
                await policy.sample(HISTORY, n=1, sampling=Sampling())


async def test_a_full_pool_is_said_to_be_full(connect: Any, upstream: FakeUpstream) -> None:
    upstream.fault = "hang"
    limits = UpstreamLimits(
        max_connections=1, connect_timeout_s=2.0, timeout_s=600.0, retries=3, breaker_failures=1
    )
    async with connect(limits=limits) as policy:
        hanging = asyncio.create_task(policy.sample(HISTORY, n=1, sampling=Sampling()))
        while not upstream.asked:
            await asyncio.sleep(0.01)
        with pytest.raises(UpstreamUnavailableError, match="all 1 connections"):
            await policy.sample(HISTORY, n=1, sampling=Sampling())
        assert len(upstream.asked) == 1, "it is not asked again"
        assert not policy.circuit_open, "a full pool says nothing of the upstream"
        hanging.cancel()
        await asyncio.gather(hanging, return_exceptions=True)


async def test_fewer_than_one_candidate_is_refused(connect: Any) -> None:
    async with connect() as policy:
        with pytest.raises(InvalidCandidatesError, match="n is 0"):
            await policy.sample(HISTORY, n=0, sampling=Sampling())


async def test_numbers_that_json_lacks_are_refused_before_they_are_sent(
    connect: Any, upstream: FakeUpstream
) -> None:
    async with connect() as policy:
        with pytest.raises(InvalidRequestError, match="NaN or Infinity"):
            await policy.sample(HISTORY, n=1, sampling=Sampling(parameters={"x": float("nan")}))
    assert not upstream.asked


async def test_an_answer_without_choices_is_paid_for() -> None:
    empty = b'{"choices": [], "usage": {"prompt_tokens": 7, "completion_tokens": 3}}'
    policy = answering(Body([empty]))
    with collect_usage() as paid, pytest.raises(UpstreamError, match="with a chat completion"):
        await policy.sample(HISTORY, n=1, sampling=Sampling())
    await policy.close()
    assert paid == [TokenUsage(7, 3)]


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
    with pytest.raises(UpstreamError, match="more than 131,072 JSON values; ask for fewer"):
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

    def read(answer: bytes) -> Completion:
        threads.append(threading.get_ident())
        return read_completion(answer)

    monkeypatch.setattr("qnet.policies.openai_compatible.read_completion", read)
    for padding in (0, MIB // 2):
        policy = answering(Body([b" " * padding, b'{"choices": [{"message": {"content": "go"}}]}']))
        assert await policy.sample(HISTORY, n=1, sampling=Sampling())
        await policy.close()
    small, large = threads
    assert small == threading.get_ident() != large


@pytest.mark.parametrize(
    ("sent", "headers", "said"),
    [
        pytest.param(b"{}", {"Content-Encoding": "br"}, "encoding 'br'; only gzip", id="unknown"),
        pytest.param(b"{}", {"Content-Encoding": "gzip"}, "cannot be reached", id="broken"),
        pytest.param(
            gzip.compress(b"{}" * 99)[:-9],
            {"Content-Encoding": "gzip"},
            "cannot be reached",
            id="cut off",
        ),
    ],
)
async def test_an_answer_that_cannot_be_decompressed_says_so(
    sent: bytes, headers: dict[str, str], said: str
) -> None:
    policy = answering(Body([sent]), headers)
    with pytest.raises(UpstreamError, match=said):
        await policy.sample(HISTORY, n=1, sampling=Sampling())
    await policy.close()


async def test_the_list_of_models_has_a_limit_too() -> None:
    policy = answering(Body(itertools.repeat(bytes(MIB // 16), 1000)))
    assert await policy.health_problem() == "answered with more than 1,048,576 bytes"
    await policy.close()

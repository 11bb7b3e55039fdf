"""Failures of an upstream: retries, refusals, and what the caller is told."""

import asyncio
import json
import re
import socket
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from typing import Any

import httpx
import pytest
import stamina

from qguide.qnet.errors import (
    HistoryTooLongError,
    UpstreamBusyError,
    UpstreamError,
    UpstreamRefusedError,
    UpstreamTimeoutError,
    UpstreamUnavailableError,
)
from qguide.qnet.policies.failures import failure_of
from qguide.qnet.policies.openai_compatible import OpenAICompatiblePolicy
from qguide.qnet.policies.upstream_settings import UpstreamLimits
from qguide.qnet.types import Sampling
from qguide.qnet.work import in_session
from qguide.server.chat.fake_openai import FakeUpstream
from tests.support.upstream_policy import HISTORY, QUICK, SHORT, Body, answering, said


@pytest.mark.parametrize("fault", ["429", "503"])
async def test_what_passes_is_asked_again(connect: Any, upstream: FakeUpstream, fault: Any) -> None:
    upstream.fault, upstream.faults_left = fault, 1
    async with connect() as policy:
        started = asyncio.get_running_loop().time()
        assert len(await policy.sample(HISTORY, n=2, sampling=Sampling())) == 2
        waited_s = asyncio.get_running_loop().time() - started
    assert len(upstream.asked) == 2
    assert waited_s >= (1.0 if fault == "429" else 0.0)


async def test_retries_of_many_callers_do_not_come_at_once(connect: Any, upstream: FakeUpstream) -> None:
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
        policy = OpenAICompatiblePolicy("demo", url=f"http://127.0.0.1:{port}/v1", model="m", limits=QUICK)
        drawn = await policy.sample(HISTORY, n=1, sampling=Sampling())
        await policy.close()
    assert said(drawn) == ["go"]
    assert len(asked) == 2


@pytest.mark.parametrize(
    ("fault", "kind", "requests", "message"),
    [
        ("429", UpstreamBusyError, 2, "later"),
        ("quota", UpstreamBusyError, 1, "insufficient_quota"),
        ("503", UpstreamUnavailableError, 2, "503"),
        ("500", UpstreamError, 1, "500"),
        ("401", UpstreamError, 1, "key .*401"),
        ("garbage", UpstreamError, 1, "completion"),
        ("hang", UpstreamTimeoutError, 1, r"0\.2 s; .*timeout_s"),
    ],
)
async def test_failures_name_the_upstream_and_no_secret(
    connect: Any, upstream: FakeUpstream, fault: Any, kind: Any, requests: int, message: str
) -> None:
    upstream.fault = fault
    async with connect(limits=SHORT if fault == "hang" else QUICK) as policy:
        with pytest.raises(UpstreamError, match=message) as raised:
            await policy.sample(HISTORY, n=2, sampling=Sampling())
    assert type(raised.value) is kind
    assert "upstream demo" in str(raised.value)
    assert "secret" not in str(raised.value)
    assert len(upstream.asked) == requests


async def test_a_longer_wait_than_allowed_is_handed_to_the_caller(connect: Any, upstream: FakeUpstream) -> None:
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
        pytest.param(format_datetime(datetime.now(UTC) + timedelta(hours=1), usegmt=True), 60.0, 3600.0, id="a date"),
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


async def test_a_wrong_request_is_the_callers_with_the_upstreams_reason(connect: Any, upstream: FakeUpstream) -> None:
    async with connect() as policy:
        with pytest.raises(UpstreamRefusedError, match=r"demo .*: messages"):
            await policy.sample((), n=2, sampling=Sampling())


async def test_nobody_there_is_unavailable() -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    policy = OpenAICompatiblePolicy("gone", url=f"http://127.0.0.1:{port}/v1", model="m", limits=QUICK)
    with pytest.raises(UpstreamUnavailableError, match=r"gone .*\(ConnectError\)") as raised:
        await policy.sample(HISTORY, n=1, sampling=Sampling())
    assert str(port) not in str(raised.value)
    await policy.close()


async def test_a_busy_upstream_is_not_a_broken_one(connect: Any, upstream: FakeUpstream) -> None:
    upstream.fault = "429"
    async with connect(limits=UpstreamLimits(retries=0, breaker_failures=1)) as policy:
        for _ in range(3):
            with pytest.raises(UpstreamBusyError):
                await policy.sample(HISTORY, n=1, sampling=Sampling())


async def test_a_full_pool_is_said_to_be_full(connect: Any, upstream: FakeUpstream) -> None:
    upstream.fault = "hang"
    limits = UpstreamLimits(max_connections=1, connect_timeout_s=2.0, timeout_s=600.0, retries=3, breaker_failures=1)
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


PATIENT = UpstreamLimits(timeout_s=0.5, retries=0, patience_s=30.0, longest_wait_s=0.1)


@pytest.mark.parametrize("fault", ["500", "hang", "503"])
async def test_a_patient_client_asks_until_the_upstream_answers(
    connect: Any, upstream: FakeUpstream, fault: Any
) -> None:
    upstream.fault, upstream.faults_left = fault, 4
    async with connect(limits=PATIENT) as policy:
        assert len(await policy.sample(HISTORY, n=1, sampling=Sampling())) == 1
    assert len(upstream.asked) == 5


async def test_patience_ends(connect: Any, upstream: FakeUpstream) -> None:
    upstream.fault = "503"
    limits = UpstreamLimits(patience_s=0.3, longest_wait_s=0.1, breaker_failures=99)
    async with connect(limits=limits) as policy:
        with pytest.raises(UpstreamError, match="503"):
            await policy.sample(HISTORY, n=1, sampling=Sampling())
    assert len(upstream.asked) > 1


@pytest.mark.parametrize(
    "reason",
    [
        "This model's maximum context length is 2048 tokens. However, you requested 2050 tokens",
        "The input (9000 tokens) is longer than the model's context length (8192 tokens).",
        "The decoder prompt (length 9254) is longer than the maximum model length of 4096.",
        "This model's maximum prompt length is 131072 but the request contains 537812 tokens.",
        "Please reduce the length of the messages or completion.",
        "Input is too long for requested model.",
        "Prompt contains 40000 tokens, too large for model with 32768 maximum.",
    ],
)
async def test_a_history_longer_than_the_context_is_known_as_such(reason: str) -> None:
    body = Body([json.dumps({"error": {"message": reason}}).encode()])
    with pytest.raises(HistoryTooLongError, match=rf"demo .*: {re.escape(reason)}"):
        await answering(body, status=400).sample(HISTORY, n=3, sampling=Sampling())


async def test_a_request_that_is_too_large_for_anthropic_is_too_long() -> None:
    error = {"type": "request_too_large", "message": "Request exceeds the maximum size"}
    body = Body([json.dumps({"type": "error", "error": error}).encode()])
    with pytest.raises(HistoryTooLongError, match=f"demo .*: {error['message']}"):
        await answering(body, status=413).sample(HISTORY, n=3, sampling=Sampling())


async def test_too_many_tokens_a_minute_are_no_history_that_is_too_long() -> None:
    error = {"code": "rate_limit_exceeded", "message": "Request too large on tokens per minute"}
    told = await failure_of(httpx.Response(413, json={"error": error}), "demo", is_patient=False)
    assert isinstance(told, UpstreamRefusedError)


async def test_a_requests_session_is_sent(connect: Any, upstream: FakeUpstream) -> None:
    async with connect() as policy:
        with in_session("tasks/küche 1"):
            await policy.sample(HISTORY, n=2, sampling=Sampling())
        await policy.sample(HISTORY, n=1, sampling=Sampling())
    assert upstream.sessions == ["tasks/k%C3%BCche%201", None]


@pytest.mark.parametrize(
    ("refusal", "left"),
    [
        ("Unrecognized request argument supplied: top_k", {"temperature": 0.5, "top_p": 0.9}),
        ("Unknown parameter: 'top_k'.", {"temperature": 0.5, "top_p": 0.9}),
        ("Unrecognized request arguments supplied: top_k, top_p", {"temperature": 0.5}),
        ("`temperature` and `top_p` cannot both be specified for this model.", {"temperature": 0.5, "top_k": 4}),
        ("`temperature` is deprecated for this model.", {"top_p": 0.9, "top_k": 4}),
    ],
)
async def test_what_a_model_does_not_take_is_left_out_from_then_on(refusal: str, left: dict[str, Any]) -> None:
    asked: list[dict[str, Any]] = []
    whole = b'{"choices": [{"message": {"role": "assistant", "content": "go"}}]}'
    spread = {"temperature": 0.5, "top_p": 0.9, "top_k": 4}

    def answer(request: httpx.Request) -> httpx.Response:
        asked.append({name: v for name, v in json.loads(request.content).items() if name in spread})
        if asked[-1] == spread:
            return httpx.Response(400, stream=Body([json.dumps({"error": {"message": refusal}}).encode()]))
        return httpx.Response(200, stream=Body([whole]))

    policy = OpenAICompatiblePolicy("demo", url="http://demo/v1", model="m", transport=httpx.MockTransport(answer))
    sampling = Sampling(temperature=0.5, parameters={"top_p": 0.9, "top_k": 4})
    for _ in range(2):
        [drawn] = await policy.sample(HISTORY, n=1, sampling=sampling)
        assert set(drawn.left_out) == spread.keys() - left.keys()
    assert asked == [spread, left, left]
    await policy.close()


@pytest.mark.parametrize(
    "refusal",
    ["Invalid 'temperature': decimal above maximum value", "temperature: range 0..1", "stop is not supported"],
)
async def test_a_value_that_is_refused_is_the_callers_matter(refusal: str) -> None:
    def answer(request: httpx.Request) -> httpx.Response:
        asked.append(request)
        return httpx.Response(400, stream=Body([json.dumps({"error": {"message": refusal}}).encode()]))

    asked: list[httpx.Request] = []
    policy = OpenAICompatiblePolicy("demo", url="http://demo/v1", model="m", transport=httpx.MockTransport(answer))
    with pytest.raises(UpstreamRefusedError):
        await policy.sample(HISTORY, n=1, sampling=Sampling(temperature=1.5))
    assert len(asked) == 1
    await policy.close()

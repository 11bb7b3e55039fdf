"""The circuit breaker in front of an upstream."""

import asyncio
from typing import Any

import httpx
import pytest

from qguide.qnet.errors import UpstreamError, UpstreamTimeoutError, UpstreamUnavailableError
from qguide.qnet.policies.upstream_settings import UpstreamLimits
from qguide.qnet.types import Message, Sampling
from qguide.qnet.work import Tenant, working_for
from qguide.server.chat.fake_openai import FakeUpstream
from tests.support.clock import Clock
from tests.support.upstream_policy import HISTORY

OPEN_S = 2.0


@pytest.fixture
def clock() -> Clock:
    return Clock()


class LongCompletions(httpx.AsyncHTTPTransport):
    """Lets the first requests wait at a gate, behind which they have taken too long."""

    def __init__(self, requests: int) -> None:
        super().__init__()
        self.left = requests
        self.entered, self.gate = asyncio.Event(), asyncio.Event()

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """An answer of the upstream, or a timeout."""
        if not self.left:
            return await super().handle_async_request(request)
        self.left -= 1
        if not self.left:
            self.entered.set()
        await self.gate.wait()
        raise httpx.ReadTimeout("too long", request=request)


async def test_an_upstream_that_keeps_failing_is_left_alone_then_tried_once(
    connect: Any, upstream: FakeUpstream, clock: Clock
) -> None:
    upstream.fault = "500"
    limits = UpstreamLimits(breaker_failures=2, breaker_open_s=OPEN_S)
    async with connect(limits=limits, clock=clock) as policy:
        for _ in range(2):
            with pytest.raises(UpstreamError, match="500"):
                await policy.sample(HISTORY, n=1, sampling=Sampling())
        with pytest.raises(UpstreamUnavailableError, match=r"demo .* 2 times .* 2\.0 s") as raised:
            await policy.sample(HISTORY, n=1, sampling=Sampling())
        assert raised.value.retry_after_s == OPEN_S
        assert len(upstream.asked) == 2
        upstream.fault = ""
        clock.now_s += OPEN_S
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
    connect: Any, upstream: FakeUpstream, clock: Clock, takes_n: bool, sampling: Sampling
) -> None:
    upstream.fault = "500"
    limits = UpstreamLimits(breaker_failures=2, breaker_open_s=OPEN_S)
    async with connect(limits=limits, takes_n=takes_n, clock=clock) as policy:
        for _ in range(2):
            with pytest.raises(UpstreamError, match="500"):
                await policy.sample(HISTORY, n=1, sampling=Sampling())
        upstream.fault = ""
        clock.now_s += OPEN_S
        assert policy.circuit_open
        assert len(await policy.sample(HISTORY, n=3, sampling=sampling)) == 3
        assert not policy.circuit_open


async def test_completions_that_are_too_long_shut_nobody_out_while_others_are_answered(
    connect: Any, upstream: FakeUpstream
) -> None:
    slow = LongCompletions(3)
    async with connect(limits=UpstreamLimits(breaker_failures=2), transport=slow) as policy:
        long = [policy.sample(HISTORY, n=1, sampling=Sampling()) for _ in range(3)]
        hanging = [asyncio.ensure_future(draw) for draw in long]
        await slow.entered.wait()
        assert await policy.sample(HISTORY, n=1, sampling=Sampling())
        assert len(upstream.asked) == 1
        slow.gate.set()
        for draw in hanging:
            with pytest.raises(UpstreamTimeoutError):
                await draw
        assert await policy.sample(HISTORY, n=1, sampling=Sampling())


async def test_an_answer_that_makes_no_sense_to_one_shuts_nobody_out(connect: Any, upstream: FakeUpstream) -> None:
    async with connect(limits=UpstreamLimits(breaker_failures=2)) as policy:
        upstream.fault = "empty"
        for _ in range(3):
            with pytest.raises(UpstreamError, match=r"demo .*completion"):
                await policy.sample(HISTORY, n=1, sampling=Sampling())
        upstream.fault = ""
        assert await policy.sample(HISTORY, n=1, sampling=Sampling())


async def test_garbage_shuts_an_upstream(connect: Any, upstream: FakeUpstream) -> None:
    upstream.fault = "garbage"
    async with connect(limits=UpstreamLimits(breaker_failures=1)) as policy:
        for said in ("did not answer with a chat completion", r"failed 1 times in a row \(.*did not answer"):
            with pytest.raises(UpstreamError, match=said):
                await policy.sample(HISTORY, n=1, sampling=Sampling())


class DropsBadRequests(httpx.AsyncHTTPTransport):
    """Loses the connection of requests that hold a word, once all of these have arrived."""

    def __init__(self, word: bytes, together: int = 1) -> None:
        super().__init__()
        self.word, self.together = word, together
        self.dropped = 0
        self.entered = asyncio.Event()

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """An answer of the upstream, or a lost connection."""
        if self.word not in request.content:
            return await super().handle_async_request(request)
        self.dropped += 1
        if self.dropped >= self.together:
            self.entered.set()
        await self.entered.wait()
        raise httpx.RemoteProtocolError("server disconnected", request=request)


@pytest.mark.parametrize("sampling", [Sampling(), Sampling(first_greedy=True)])
async def test_one_step_that_breaks_the_upstream_shuts_nobody_out(
    connect: Any, upstream: FakeUpstream, sampling: Sampling
) -> None:
    limits = UpstreamLimits(retries=2, breaker_failures=2)
    async with connect(limits=limits, takes_n=False, transport=DropsBadRequests(b"poison", together=5)) as policy:
        with pytest.raises(UpstreamError, match=r"demo .*\(RemoteProtocolError\)"):
            await policy.sample((Message("user", "poison"),), n=5, sampling=sampling)
        assert await policy.sample(HISTORY, n=3, sampling=Sampling())


async def test_the_step_that_opens_the_circuit_reads_its_own_error(connect: Any, upstream: FakeUpstream) -> None:
    limits = UpstreamLimits(retries=2, breaker_failures=1)
    transport = DropsBadRequests(b"poison")
    async with connect(limits=limits, transport=transport) as policy:
        for said in ("cannot be reached", "failed 1 times in a row"):
            with pytest.raises(UpstreamError, match=said):
                await policy.sample((Message("user", "poison"),), n=1, sampling=Sampling())
    assert transport.dropped == 1


async def test_different_steps_that_fail_open_the_circuit(connect: Any, upstream: FakeUpstream) -> None:
    limits = UpstreamLimits(retries=2, breaker_failures=2)
    async with connect(limits=limits, transport=DropsBadRequests(b"poison")) as policy:
        for is_open in (False, True):
            with pytest.raises(UpstreamError, match=r"demo .*\(RemoteProtocolError\)"):
                await policy.sample((Message("user", "poison"),), n=1, sampling=Sampling())
            assert policy.circuit_open is is_open


async def test_a_key_whose_requests_the_upstream_answers_with_500_closes_it_to_no_other_key(
    connect: Any, upstream: FakeUpstream
) -> None:
    upstream.fault = "500"
    async with connect(limits=UpstreamLimits(retries=0, breaker_failures=2)) as policy:
        with working_for(Tenant("eve")):
            for said in ("answered with 500",) * 2 + (r"failed 2 times in a row for this key \(.*with 500\)",):
                with pytest.raises(UpstreamError, match=said):
                    await policy.sample(HISTORY, n=1, sampling=Sampling())
        upstream.fault = ""
        with working_for(Tenant("ada")):
            assert await policy.sample(HISTORY, n=1, sampling=Sampling())
        assert not policy.circuit_open


class ListOfModels(httpx.AsyncHTTPTransport):
    """Answers the health check with a status of its own."""

    status = 500

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """An answer of the upstream, with this status if it is the list of models."""
        answer = await super().handle_async_request(request)
        if request.method == "GET":
            answer.status_code = self.status
        return answer


async def test_an_upstream_that_fails_a_key_and_its_health_check_is_closed_to_all(
    connect: Any, upstream: FakeUpstream
) -> None:
    upstream.fault, transport = "500", ListOfModels()
    limits = UpstreamLimits(retries=0, breaker_failures=2)
    async with connect(limits=limits, transport=transport) as policy:
        for key in ("ada", "bob"):
            with working_for(Tenant(key)):
                for _ in range(2):
                    with pytest.raises(UpstreamError, match=r"demo .*500"):
                        await policy.sample(HISTORY, n=1, sampling=Sampling())
        assert not policy.circuit_open
        assert await policy.health_problem() == "answers with 500"
        assert policy.circuit_open
        asked = len(upstream.asked)
        with (
            working_for(Tenant("eve")),
            pytest.raises(UpstreamUnavailableError, match=r"demo .* 2 times .*health .* 10\.0 s"),
        ):
            await policy.sample(HISTORY, n=1, sampling=Sampling())
        assert len(upstream.asked) == asked
        upstream.fault, transport.status = "", 200
        assert await policy.health_problem() == ""
        with working_for(Tenant("eve")):
            assert await policy.sample(HISTORY, n=1, sampling=Sampling())

"""Health of upstreams between requests."""

import asyncio
import socket
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import structlog
from fastapi import FastAPI, Response

from qguide.qnet.policies.openai_compatible import OpenAICompatiblePolicy
from qguide.qnet.policies.upstream_settings import UpstreamLimits
from qguide.qnet.types import Message, Sampling
from qguide.server.chat.fake_openai import FakeUpstream
from qguide.server.observability.metrics import Metrics
from qguide.server.settings.remote_models import Upstream
from qguide.server.upstreams.health import UpstreamWatch
from tests.support.serving import free_port, serving_app
from tests.unit.server.conftest import FAKES, Serve


class Answering:
    """A server whose one answer is a status, or a failure as often as it was told to."""

    def __init__(self) -> None:
        self.status = 200
        self.fails: list[bool] = []
        self.app = FastAPI()
        self.app.add_api_route("/v1/models", self.models)

    async def models(self) -> Response:
        fails = bool(self.fails) and self.fails.pop(0)
        return Response(status_code=500 if fails else self.status)


@pytest.fixture(scope="module")
def answering() -> Iterator[tuple[Answering, str]]:
    state = Answering()
    with serving_app(state.app) as url:
        yield state, f"{url}/v1"


async def until(found: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not found():
            await asyncio.sleep(0.01)


@pytest.mark.parametrize(
    ("status", "said"),
    [(200, ""), (404, ""), (501, ""), (401, "refuses this server's key with 401"), (503, "answers with 503")],
)
async def test_what_an_upstream_answers_says_how_it_is(
    answering: tuple[Answering, str], status: int, said: str
) -> None:
    state, url = answering
    state.status = status
    policy = OpenAICompatiblePolicy("demo", url=url, model="m")
    assert await policy.health_problem() == said
    await policy.close()


async def test_silence_and_absence_are_told_apart() -> None:
    limits = UpstreamLimits(connect_timeout_s=5.0, poll_timeout_s=1.0)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        there = f"http://127.0.0.1:{silent.getsockname()[1]}/v1"
        for url, said in ((there, "ReadTimeout"), (_nobody(), "ConnectError")):
            policy = OpenAICompatiblePolicy("demo", url=url, model="m", limits=limits)
            assert await policy.health_problem() == f"does not answer ({said})"
            await policy.close()


async def test_one_that_goes_and_comes_back_is_said_once_each(answering: tuple[Answering, str]) -> None:
    state, url = answering
    state.status = 200
    policy = OpenAICompatiblePolicy("demo", url=url, model="m")
    metrics = Metrics()
    watch = UpstreamWatch([policy], metrics, every_s=0.02, again_s=0.01)
    assert watch.details == {"upstream demo": "not checked yet"}

    def up() -> float | None:
        return metrics.registry.get_sample_value("qguide_upstream_up", {"upstream": "demo"})

    with structlog.testing.capture_logs() as logged:
        async with watch.watched():
            await until(lambda: watch.details == {"upstream demo": "ok"})
            assert (up(), watch.is_gone("demo")) == (1, False)
            state.status = 500
            await until(lambda: watch.details == {"upstream demo": "answers with 500"})
            assert (up(), watch.is_gone("demo")) == (0, True)
            await asyncio.sleep(0.1)
            state.status = 200
            await until(lambda: watch.details == {"upstream demo": "ok"})
    assert [line["event"] for line in logged] == ["upstream_gone", "upstream_back"]
    await policy.close()


async def test_one_failure_is_no_end(answering: tuple[Answering, str]) -> None:
    state, url = answering
    policy = OpenAICompatiblePolicy("demo", url=url, model="m")
    watch = UpstreamWatch([policy], Metrics(), every_s=0.01, again_s=0.01)
    state.status, state.fails = 200, [False, True, False, True, False]
    with structlog.testing.capture_logs() as logged:
        async with watch.watched():
            await until(lambda: not state.fails)
            await until(lambda: watch.details == {"upstream demo": "ok"})
    assert logged == []
    await policy.close()


async def test_where_all_connections_are_busy_what_was_known_stands(
    address: tuple[FakeUpstream, str], upstream: FakeUpstream
) -> None:
    limits = UpstreamLimits(connect_timeout_s=1.0, max_connections=1, breaker_failures=1)
    policy = OpenAICompatiblePolicy("demo", url=address[1], model="m", limits=limits)
    assert await policy.health_problem() == ""
    upstream.fault = "hang"
    draw = policy.sample((Message("user", "look"),), n=1, sampling=Sampling())
    hanging = asyncio.create_task(draw)
    await until(lambda: bool(upstream.asked))
    watch = UpstreamWatch([policy], Metrics(), every_s=0.01, again_s=0.01)
    async with watch.watched():
        for _ in range(2):  # the second outlasts the first check of the watch
            assert await policy.health_problem() is None
        assert watch.details == {"upstream demo": "not checked yet"}
    hanging.cancel()
    await asyncio.gather(hanging, return_exceptions=True)
    await policy.close()


@pytest.mark.parametrize(("vllm", "status"), [("", 200), ("a-model", 503)])
async def test_after_a_start_too_readiness_knows_who_is_gone(serve: Serve, vllm: str, status: int) -> None:
    gone = Upstream.model_validate({"url": _nobody(), "model": "m"})
    with serving_app(FakeUpstream().app()) as url:
        well = Upstream.model_validate({"url": f"{url}/v1", "model": "m"})
        upstreams: dict[str, Any] = {"vllm": gone, "well": well}
        settings = FAKES.model_copy(update={"upstreams": upstreams, "policy": "vllm", "vllm": vllm})
        client = serve(settings)
        expected = {"upstream vllm": "does not answer (ConnectError)", "upstream well": "ok"}
        await until(lambda: client.get("/readyz").json()["details"] == expected)
        ready = client.get("/readyz")
        assert ready.status_code == status
        assert ("vLLM does not answer" in ready.text) == (status == 503)


def _nobody() -> str:
    return f"http://127.0.0.1:{free_port()}/v1"

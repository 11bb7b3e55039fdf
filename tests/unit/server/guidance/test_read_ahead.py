"""While an upstream draws, the Q model reads the history; answers and bills stay the same."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any

import httpx
import pytest

from qguide.qnet.device.device_thread import DeviceThread
from qguide.qnet.policies.scripted import ScriptedPolicy
from qguide.qnet.scoring.value_head import SharedPrefixScorer
from qguide.qnet.types import Candidate, History, Sampling
from qguide.server.app import create_app
from qguide.server.observability.metrics import Metrics
from qguide.server.settings.settings import Settings
from tests.support.tiny_models import q_model
from tests.unit.server.conftest import FAKES, models_of

LOADED = q_model()
MESSAGES = [{"role": "user", "content": "take mug from desk " * 15}]
STEP: dict[str, Any] = {"messages": MESSAGES, "num_candidates": 3, "seed": 5}


class SlowPolicy(ScriptedPolicy):
    """Draws once it may."""

    def __init__(self) -> None:
        super().__init__()
        self.may_draw = asyncio.Event()
        self.asked = asyncio.Event()

    async def sample(self, history: History, *, n: int, sampling: Sampling) -> list[Candidate]:
        """Wait, then draw."""
        self.asked.set()
        await self.may_draw.wait()
        return await super().sample(history, n=n, sampling=sampling)


@dataclass
class Server:
    """A client of a server whose policy is slow."""

    client: httpx.AsyncClient
    policy: SlowPolicy
    thread: DeviceThread
    scorer: SharedPrefixScorer
    metrics: Metrics

    def read_ahead(self, outcome: str) -> float:
        """Tokens that were read ahead."""
        name = "qguide_read_ahead_tokens_total"
        found = self.metrics.registry.get_sample_value(name, {"q_model": "tiny-q@0", "outcome": outcome})
        return found or 0.0

    async def has_read(self) -> None:
        """Wait until a history was read ahead, and the device has nothing left to do."""
        async with asyncio.timeout(60):
            while self.thread.busy or not self.scorer.cache.nbytes:
                await asyncio.sleep(0.005)


@asynccontextmanager
async def server(*, upstream_model: str | None = "large", settings: Settings = FAKES) -> AsyncIterator[Server]:
    """A server whose policy draws elsewhere, unless `upstream_model` is None."""
    thread, policy = DeviceThread(), SlowPolicy()
    scorer = SharedPrefixScorer(LOADED, cache_bytes=2**24, tokens_per_forward=16)
    models = models_of(policy, scorer, thread)
    models = replace(models, policy=replace(models.policy, upstream_model=upstream_model))
    app = create_app(settings, build=lambda _: models)
    transport = httpx.ASGITransport(app)
    async with (
        app.router.lifespan_context(app),
        httpx.AsyncClient(transport=transport, base_url="http://localhost") as client,
    ):
        yield Server(client, policy, thread, scorer, models.runtime.metrics)


async def step(of: Server, *, ahead: bool) -> dict[str, Any]:
    """The answer to a step, drawn once its history was read or at once."""
    asked = asyncio.create_task(of.client.post("/v1/act", json=STEP))
    await of.policy.asked.wait()
    if ahead:
        await of.has_read()
    of.policy.may_draw.set()
    answer: dict[str, Any] = (await asked).json()
    return answer


async def test_the_answer_is_that_of_a_server_that_reads_nothing_ahead() -> None:
    off = FAKES.model_copy(update={"read_ahead": False})
    async with server() as one, server(settings=off) as other:
        ahead, cold = await step(one, ahead=True), await step(other, ahead=False)
        assert one.read_ahead("used") > 50
        assert (one.read_ahead("wasted"), other.read_ahead("used")) == (0, 0)
    assert ahead["chosen"] == cold["chosen"]
    found, expected = ([c["q_value"] for c in a["candidates"]] for a in (ahead, cold))
    assert found == pytest.approx(expected, abs=1e-5)
    assert ahead["usage"] == cold["usage"]
    assert ahead["usage"]["cached_tokens"] == 0


async def test_what_was_read_ahead_is_charged_like_what_was_scored() -> None:
    off = FAKES.model_copy(update={"read_ahead": False})
    computed = []
    for settings in (FAKES, off):
        async with server(settings=settings) as one:
            await step(one, ahead=settings is FAKES)
            labels = {"q_model": "tiny-q@0", "kind": "computed"}
            registry = one.metrics.registry
            computed.append(registry.get_sample_value("qguide_scorer_tokens_total", labels))
    assert computed[0] == computed[1]


async def test_a_policy_in_this_process_needs_the_device_itself() -> None:
    async with server(upstream_model=None) as one:
        asked = asyncio.create_task(one.client.post("/v1/act", json=STEP))
        await one.policy.asked.wait()
        await asyncio.sleep(0.2)  # in which it would be read
        assert (one.scorer.cache.nbytes, one.thread.busy) == (0, False)
        one.policy.may_draw.set()
        await asked
        assert (one.read_ahead("used"), one.read_ahead("wasted")) == (0, 0)


async def test_nothing_is_read_for_a_step_without_a_choice() -> None:
    async with server() as one:
        one.policy.may_draw.set()
        await one.client.post("/v1/act", json={**STEP, "num_candidates": 1})
        assert (one.read_ahead("used"), one.read_ahead("wasted")) == (0, 0)


async def test_reading_stops_with_its_request_and_is_counted_as_wasted() -> None:
    async with server() as one:
        asked = asyncio.create_task(one.client.post("/v1/act", json=STEP))
        await one.policy.asked.wait()
        await one.has_read()
        asked.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asked
        assert one.read_ahead("wasted") > 50
        assert one.read_ahead("used") == 0


async def test_a_score_is_answered_while_an_upstream_draws() -> None:
    async with server() as one:
        asked = asyncio.create_task(one.client.post("/v1/act", json=STEP))
        await one.policy.asked.wait()
        body = {"messages": MESSAGES, "candidates": ["go to desk", "open shelf"]}
        scored = await one.client.post("/v1/score", json=body)
        assert scored.status_code == 200
        assert not asked.done()
        one.policy.may_draw.set()
        assert (await asked).status_code == 200

"""Requests that come together are scored together, and nothing blocks the loop."""

import asyncio
import math
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import httpx

from qguide.qnet.device.device_thread import DeviceThread
from qguide.qnet.policies.scripted import ScriptedPolicy
from qguide.qnet.scoring.scripted import ScriptedScorer
from qguide.qnet.sliced_scorer import CachingScorer
from qguide.qnet.types import ScoreRequest, ScoreResult
from qguide.server.app import create_app
from qguide.server.settings.settings import Settings
from tests.support.gated_scorer import GatedScorer
from tests.unit.server.conftest import FAKES, models_of


class NanScorer(ScriptedScorer):
    """Knows no number."""

    def score(self, requests: Sequence[ScoreRequest]) -> list[ScoreResult]:
        """NaN for every candidate."""
        return [ScoreResult((math.nan,) * len(r.candidates), 1) for r in requests]


@asynccontextmanager
async def serving(
    scorer: CachingScorer, *, settings: Settings = FAKES, max_waiting: int = 64
) -> AsyncIterator[httpx.AsyncClient]:
    """A client in the server's own event loop."""
    thread = DeviceThread(max_waiting=max_waiting)
    app = create_app(settings, build=lambda _: models_of(ScriptedPolicy(), scorer, thread))
    transport = httpx.ASGITransport(app)
    async with (
        app.router.lifespan_context(app),
        httpx.AsyncClient(transport=transport, base_url="http://localhost") as client,
    ):
        yield client


async def act(client: httpx.AsyncClient, say: str = "look") -> httpx.Response:
    body = {"messages": [{"role": "user", "content": say}], "num_candidates": 2}
    return await client.post("/v1/act", json=body)


async def test_what_comes_during_a_batch_is_the_next_batch() -> None:
    scorer = GatedScorer()
    async with serving(scorer) as client:
        first = asyncio.create_task(act(client))
        await asyncio.to_thread(scorer.entered.wait, 30)
        others = [asyncio.create_task(act(client, f"look {n}")) for n in range(5)]
        # The loop answers while the device works; each answer lets the others go on.
        for _ in range(20):
            assert (await client.get("/healthz")).status_code == 200
            await asyncio.sleep(0.01)
        scorer.gate.set()
        answers = [await task for task in (first, *others)]
    assert [answer.status_code for answer in answers] == [200] * 6
    assert scorer.batches == [1, 5]


async def test_more_than_may_wait_is_503_with_a_time_to_come_back() -> None:
    scorer = GatedScorer()
    async with serving(scorer, max_waiting=1) as client:
        running = asyncio.create_task(act(client))
        await asyncio.to_thread(scorer.entered.wait, 30)
        # One of these two takes the only place in the queue; the other is sent away at once.
        two = [asyncio.create_task(act(client, f"look {n}")) for n in range(2)]
        (refused,), (waiting,) = await asyncio.wait(two, return_when=asyncio.FIRST_COMPLETED)
        scorer.gate.set()
        assert (await waiting).status_code == 200
        assert (await running).status_code == 200
    response = refused.result()
    assert (response.status_code, response.headers["retry-after"]) == (503, "1")
    assert response.json()["error"]["code"] == "overloaded"
    assert "try again later" in response.json()["error"]["message"]


async def test_a_q_that_is_no_number_is_never_served() -> None:
    async with serving(NanScorer({})) as client:
        response = await act(client)
    assert response.status_code == 503
    assert "a Q-value is nan; the Q model is broken" in response.json()["error"]["message"]


async def test_a_dead_device_turns_readiness_red_with_a_time_to_come_back() -> None:
    thread = DeviceThread()
    models = models_of(ScriptedPolicy(), ScriptedScorer({}), thread)
    app = create_app(FAKES, build=lambda _: models)
    async with (
        app.router.lifespan_context(app),
        httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://localhost") as client,
    ):
        thread.close()
        response = await client.get("/readyz")
    assert (response.status_code, response.headers["retry-after"]) == (503, "1")
    assert response.json()["status"] == "unavailable"

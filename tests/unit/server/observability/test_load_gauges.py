"""The gauges by which a gateway picks a replica follow the requests that wait and run."""

import asyncio

import httpx

from qguide.qnet.scoring.value_head import SharedPrefixScorer
from tests.support.gated_scorer import GatedScorer
from tests.support.tiny_models import q_model
from tests.unit.server.conftest import FAKES
from tests.unit.server.guidance.test_concurrency import serving

SCORE = {"messages": [{"role": "user", "content": "take mug"}], "candidates": ["go", "open"]}


async def gauges(client: httpx.AsyncClient) -> dict[str, float]:
    """The three gauges by name."""
    page = await client.get("/metrics")
    lines = [line.split() for line in page.text.splitlines() if line.startswith("qguide_")]
    names = ("qguide_requests_waiting", "qguide_requests_running", "qguide_cache_share")
    return {line[0]: float(line[1]) for line in lines if line[0] in names}


async def test_requests_in_the_queue_wait_and_the_others_run() -> None:
    scorer = GatedScorer()
    async with serving(scorer) as client:
        assert await gauges(client) == {
            "qguide_requests_waiting": 0,
            "qguide_requests_running": 0,
            "qguide_cache_share": 0,
        }
        first = asyncio.create_task(client.post("/v1/score", json=SCORE))
        await asyncio.to_thread(scorer.entered.wait, 20)
        others = [asyncio.create_task(client.post("/v1/score", json=SCORE)) for _ in range(2)]
        async with asyncio.timeout(20):
            while (await gauges(client))["qguide_requests_waiting"] < 2:
                await asyncio.sleep(0.01)
        assert (await gauges(client))["qguide_requests_running"] == 1
        scorer.gate.set()
        await asyncio.gather(first, *others)
        assert (await gauges(client))["qguide_requests_running"] == 0


async def test_a_batch_that_waits_is_one_request_beside_the_one_that_runs() -> None:
    scorer = GatedScorer()
    items = [{"messages": [{"role": "user", "content": f"take {n}"}], "candidates": ["go", "open"]} for n in range(6)]
    async with serving(scorer) as client:
        first = asyncio.create_task(client.post("/v1/score", json=SCORE))
        await asyncio.to_thread(scorer.entered.wait, 20)
        batch = asyncio.create_task(client.post("/v1/score/batch", json={"items": items}))
        async with asyncio.timeout(20):
            while not (await gauges(client))["qguide_requests_waiting"]:
                await asyncio.sleep(0.01)
        await asyncio.sleep(0.1)  # until all of its items wait
        found = await gauges(client)
        assert (found["qguide_requests_waiting"], found["qguide_requests_running"]) == (1, 1)
        scorer.gate.set()
        await asyncio.gather(first, batch)


async def test_the_share_is_that_of_the_caches_budget() -> None:
    scorer = SharedPrefixScorer(q_model(), cache_bytes=2**24, tokens_per_forward=64)
    async with serving(scorer) as client:
        await client.post("/v1/score", json=SCORE)
        share = (await gauges(client))["qguide_cache_share"]
        assert 0 < share < 1
        assert scorer.cache.nbytes == round(share * FAKES.most_cache_bytes)

"""Callers that hang up: their waiting work is cancelled, and nobody else is hurt."""

import asyncio

import httpx
import pytest

from qguide.qnet.device.device_thread import DeviceThread
from tests.support.gated_scorer import CHAT, END_S, GatedScorer, entered, say, stream_of
from tests.support.queues import until_waiting

pytestmark = pytest.mark.server


async def waiting_is(client: httpx.AsyncClient, gone: int, *, route: str = "/v1/score") -> None:
    """Wait until the server has noticed so many callers who left."""
    line = f'qguide_requests_total{{route="{route}",status="499"}} {float(gone)}'
    async with asyncio.timeout(END_S):
        while line not in (await client.get("/metrics")).text:
            await asyncio.sleep(0.05)


async def test_a_client_that_goes_takes_its_waiting_work_along(
    url: str, scorer: GatedScorer, thread: DeviceThread
) -> None:
    async with httpx.AsyncClient(base_url=url, timeout=END_S) as stays:
        first = asyncio.create_task(stays.post("/v1/score", json=say("first")))
        await entered(scorer)
        second = asyncio.create_task(stays.post("/v1/score", json=say("second")))
        async with httpx.AsyncClient(base_url=url, timeout=END_S) as goes:
            gone = [
                asyncio.create_task(goes.post("/v1/score", json=say("gone"))),
                asyncio.create_task(goes.post("/v1/score", json=say("gone"))),
            ]
            await until_waiting(thread, 3)
            for task in gone:
                task.cancel()
            await asyncio.gather(*gone, return_exceptions=True)
        await waiting_is(stays, gone=2)
        scorer.gate.set()
        answers = [await first, await second]
    assert [answer.status_code for answer in answers] == [200, 200]
    assert scorer.asked == ["first", "second"]


async def test_a_streaming_client_that_goes_takes_its_waiting_work_along(
    url: str, scorer: GatedScorer, thread: DeviceThread
) -> None:
    async with httpx.AsyncClient(base_url=url, timeout=END_S) as stays:
        first = asyncio.create_task(stays.post("/v1/score", json=say("first")))
        await entered(scorer)
        async with httpx.AsyncClient(base_url=url, timeout=END_S) as goes:
            gone = asyncio.create_task(goes.post(CHAT, json=stream_of("gone")))
            await until_waiting(thread, 1)
            gone.cancel()
            await asyncio.gather(gone, return_exceptions=True)
        await waiting_is(stays, gone=1, route=CHAT)
        second = asyncio.create_task(stays.post("/v1/score", json=say("second")))
        scorer.gate.set()
        answers = [await first, await second]
    assert [answer.status_code for answer in answers] == [200, 200]
    assert scorer.asked == ["first", "second"]

"""Too much of everything: large bodies, long histories and floods hurt nobody else."""

import asyncio
import itertools
from pathlib import Path

import httpx

from qguide.qnet.device.device_thread import DeviceThread
from qguide.qnet.policies.scripted import ScriptedPolicy
from qguide.server.app import create_app
from qguide.server.http.keys import create_key
from qguide.server.settings.settings import Settings
from tests.support.gated_scorer import END_S, SCORE, GatedScorer, entered, say
from tests.support.serving import serving_app
from tests.unit.server.conftest import FAKES, models_of


async def test_a_body_of_forty_megabytes_is_413(url: str, scorer: GatedScorer) -> None:
    scorer.gate.set()
    async with httpx.AsyncClient(base_url=url, timeout=END_S) as client:
        big = asyncio.create_task(client.post("/v1/score", content=b'{"messages": [' + b" " * 40_000_000))
        other = await client.post("/v1/score", json=SCORE)
        assert other.status_code == 200
        answer = await big
        assert (answer.status_code, answer.json()["error"]["code"]) == (413, "body_too_large")
        assert (await client.post("/v1/score", json=SCORE)).status_code == 200
    assert len(scorer.asked) == 2


async def test_a_history_of_five_million_tokens_is_refused_before_it_is_counted(url: str, scorer: GatedScorer) -> None:
    scorer.gate.set()
    async with httpx.AsyncClient(base_url=url, timeout=END_S) as client:
        long = asyncio.create_task(client.post("/v1/score", json=say("a " * 5_000_000)))
        other = await client.post("/v1/score", json=SCORE)
        assert other.status_code == 200
        answer = await long
        error = answer.json()["error"]
        assert (answer.status_code, error["code"]) == (400, "history_too_long")
        assert "shorten it" in error["message"]
    assert scorer.asked == ["look"]


async def test_a_flood_from_one_key_leaves_the_others_unhurt(tmp_path: Path, scorer: GatedScorer) -> None:
    keys_file = tmp_path / "keys.json"
    flood, other = create_key(keys_file, "flood"), create_key(keys_file, "other")
    options = {"keys_file": keys_file, "concurrent_requests": 8, "timeout_s": 60}
    # A client on a busy machine may take its time to send.
    patience = {"head_timeout_s": END_S, "body_timeout_s": END_S}
    settings = Settings(**FAKES.model_dump() | options | patience)
    thread = DeviceThread(max_waiting=16)
    models = models_of(ScriptedPolicy(), scorer, thread)
    with serving_app(create_app(settings, build=lambda _: models)) as url:
        limits = httpx.Limits(max_connections=200)
        async with (
            httpx.AsyncClient(base_url=url, timeout=END_S, limits=limits, headers={"X-API-Key": flood}) as floods,
            httpx.AsyncClient(base_url=url, timeout=END_S, headers={"X-API-Key": other}) as others,
        ):
            sent = [asyncio.create_task(floods.post("/v1/score", json=say(f"flood {n}"))) for n in range(100)]
            await entered(scorer)
            # Eight wait, so that the other keys find room in the queue.
            for refused in itertools.islice(asyncio.as_completed(sent), 92):
                answer = await refused
                assert answer.status_code == 429
                assert answer.json()["error"]["code"] == "too_many_at_once"
                assert int(answer.headers["retry-after"]) >= 1
            mine = [asyncio.create_task(others.post("/v1/score", json=SCORE)) for _ in range(4)]
            await asyncio.sleep(0.3)
            scorer.gate.set()
            assert [(await task).status_code for task in mine] == [200] * 4
            statuses = [(await task).status_code for task in sent]
    assert (statuses.count(200), statuses.count(429)) == (8, 92)

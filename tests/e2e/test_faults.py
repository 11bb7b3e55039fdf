"""One test per fault: what its callers see, and that other callers are unaffected.

The servers are real, on real sockets; where a fault needs a hand on the scorer, uvicorn runs on a
thread of this process, otherwise `qguide serve` in one of its own. Faults of upstreams are in
test_upstream_faults.py.
"""

import asyncio
import itertools
import json
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

import httpx
import psutil
import pytest

from qnet.device.device_thread import DeviceThread
from qnet.policies.scripted import ScriptedPolicy
from qnet.scoring.value_head import ScriptedScorer
from qnet.types import ScoreRequest, ScoreResult
from server.access.keys import create_key
from server.app import create_app
from server.chat.fake_openai import FakeUpstream
from server.settings.settings import Settings, Upstream
from tests.support.queues import until_waiting
from tests.support.redis_server import RedisServer, require_redis
from tests.support.serving import Serving, serving_app, serving_process
from tests.unit.server.conftest import FAKES, models_of

Answer = TypeVar("Answer")
END_S = 60.0
USER = {"role": "user", "content": "look"}
SCORE = {"messages": [USER], "candidates": ["go", "stay"]}
CHAT = "/v1/chat/completions"


def say(text: str) -> dict[str, Any]:
    return SCORE | {"messages": [{"role": "user", "content": text}]}


def stream_of(text: str) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": text}], "stream": True}


class GatedScorer(ScriptedScorer):
    """Scores while its gate is open, records what it was asked, and dies when asked to "die"."""

    def __init__(self) -> None:
        super().__init__({})
        self.gate = threading.Event()
        self.entered = threading.Event()
        self.asked: list[str] = []

    def score(self, requests: Sequence[ScoreRequest]) -> list[ScoreResult]:
        """Wait for the gate, then score or die."""
        self.asked += [request.history[-1].content for request in requests]
        self.entered.set()
        assert self.gate.wait(END_S)
        if any(text == "die" for text in self.asked):
            raise Death
        return super().score(requests)


class Death(BaseException):
    """An exception that no worker survives."""


@pytest.fixture
def scorer() -> Iterator[GatedScorer]:
    scorer = GatedScorer()
    yield scorer
    scorer.gate.set()


@pytest.fixture
def thread() -> DeviceThread:
    """The device thread of the server at `url`."""
    return DeviceThread()


@pytest.fixture
def url(scorer: GatedScorer, thread: DeviceThread) -> Iterator[str]:
    """A server whose scorer waits for its gate."""
    settings = FAKES.model_copy(update={"timeout_s": END_S})
    build = lambda _: models_of(ScriptedPolicy(), scorer, thread)  # noqa: E731
    with serving_app(create_app(settings, build=build)) as url:
        yield url


async def entered(scorer: GatedScorer) -> None:
    assert await asyncio.to_thread(scorer.entered.wait, END_S)


async def waiting_is(client: httpx.AsyncClient, gone: int, *, route: str = "/v1/score") -> None:
    """Wait until the server has noticed so many callers who left."""
    line = f'qguide_requests_total{{route="{route}",status="499"}} {float(gone)}'
    async with asyncio.timeout(END_S):
        while line not in (await client.get("/metrics")).text:
            await asyncio.sleep(0.05)


def test_redis_killed_and_back(tmp_path: Path) -> None:
    require_redis()
    redis = RedisServer(tmp_path)
    redis.start()
    keys_file = tmp_path / "keys.json"
    mine, others = ({"X-API-Key": create_key(keys_file, name)} for name in ("ada", "bob"))
    variables = {
        "QGUIDE_REDIS_URL": redis.url,
        "QGUIDE_REQUESTS_PER_MINUTE": "1000",
        "QGUIDE_KEYS_FILE": str(keys_file),
        "QGUIDE_PUBLIC_METRICS": "true",
        "QGUIDE_PARAPHRASER": "scripted",
    }
    try:
        with (
            serving_process(tmp_path, environment=variables) as server,
            httpx.Client(base_url=server.url, timeout=END_S, headers=mine) as client,
            httpx.Client(base_url=server.url, timeout=END_S, headers=others) as other,
        ):

            def steps(turns: int) -> None:
                """Continue both callers' episodes, which have the same id."""
                said = [USER, *([{"role": "assistant", "content": "go"}, USER] * (turns - 1))]
                for caller in (client, other):
                    asked = {"messages": said, "episode_id": "e", "num_candidates": 3}
                    answer = caller.post("/v1/act", json=asked | {"perturb": True})
                    assert answer.status_code == 200, answer.text
                    assert answer.elapsed.total_seconds() < 10
                    assert (answer.json()["guided"], answer.json()["warnings"]) == (True, [])
                    paraphrased = answer.json()["usage"]["paraphrase_tokens"]
                    # Known of each caller's first step, also while Redis is gone.
                    assert (paraphrased > 0) == (turns == 1)

            def redis_is() -> str:
                ready = client.get("/readyz")
                assert ready.status_code == 200
                return str(ready.json()["details"]["redis"])

            def wait_for(state: str, gauge: int) -> None:
                deadline = time.monotonic() + END_S
                while not redis_is().startswith(state):
                    assert client.post("/v1/score", json=SCORE).status_code == 200
                    assert time.monotonic() < deadline, redis_is()
                    time.sleep(0.05)
                assert f"qguide_redis_up {float(gauge)}" in client.get("/metrics").text

            left = client.post("/v1/score", json=SCORE).headers["ratelimit-remaining"]
            assert (redis_is(), left) == ("ok", "999")
            steps(1)
            redis.kill()
            steps(2)
            for _ in range(5):
                answer = client.post("/v1/score", json=SCORE)
                assert (answer.status_code, answer.elapsed.total_seconds() < 10) == (200, True)
            wait_for("down", 0)
            steps(3)
            redis.start()
            wait_for("ok", 1)
            # Counted in the new Redis, which knows nothing of before.
            assert int(client.post("/v1/score", json=SCORE).headers["ratelimit-remaining"]) >= 990
            left = other.post("/v1/score", json=SCORE).headers["ratelimit-remaining"]
            assert left == "999", "another caller pays for its own requests alone"
            steps(4)
            for caller in (client, other):
                ended = caller.post("/v1/episodes/e/outcome", json={"reward": 1.0})
                assert (ended.status_code, ended.json()["steps"]) == (200, 4)
    finally:
        redis.kill()
    events = [json.loads(line)["event"] for line in server.log.read_text().splitlines()[1:]]
    assert events.count("redis_gone") == events.count("redis_back") == 1


async def test_the_scorers_thread_dies(url: str, scorer: GatedScorer, thread: DeviceThread) -> None:
    async with httpx.AsyncClient(base_url=url, timeout=END_S) as client:
        dies = asyncio.create_task(client.post("/v1/score", json=say("die")))
        await entered(scorer)
        others = [
            asyncio.create_task(client.post("/v1/score", json=say(f"wait {n}"))) for n in range(3)
        ]
        await until_waiting(thread, 3)
        # The death is the thread's own; pytest would take it for this test's.
        hook, threading.excepthook = threading.excepthook, lambda _: None
        try:
            scorer.gate.set()
            async with asyncio.timeout(END_S):  # nobody hangs
                answers = [await task for task in (dies, *others)]
                answers.append(await client.post("/v1/score", json=SCORE))
        finally:
            threading.excepthook = hook
        assert [answer.status_code for answer in answers] == [503] * 5
        for answer in answers:
            assert answer.json()["error"]["code"] == "scorer_unavailable"
            assert "died" in answer.text or "dead" in answer.text
            assert int(answer.headers["retry-after"]) >= 1
        for path in ("/readyz", "/healthz"):  # only another process helps, so it is not alive
            red = await client.get(path)
            assert (red.status_code, red.json()["status"]) == (503, "unavailable")
            assert "restart the server" in red.json()["reason"]
        assert (await client.get("/v1/models")).status_code == 200


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


def test_sigterm_under_load_loses_no_request(tmp_path: Path) -> None:
    statuses: list[int] = []
    refused: list[httpx.Response] = []
    lost: list[str] = []
    stop = threading.Event()

    def ask(url: str) -> None:
        with httpx.Client(base_url=url, timeout=END_S) as client:
            while not stop.is_set():
                try:
                    answer = client.post("/v1/act", json={"messages": [USER], "num_candidates": 3})
                except httpx.ConnectError:
                    return  # the door is closed, and it was said before
                except httpx.TransportError as error:
                    lost.append(repr(error))
                    return
                statuses.append(answer.status_code)
                if answer.status_code != 200:
                    refused.append(answer)
                    return

    variables = {"QGUIDE_DRAIN_DELAY_S": "3"}
    with serving_process(tmp_path, environment=variables) as server:
        callers = [threading.Thread(target=ask, args=(server.url,)) for _ in range(8)]
        for caller in callers:
            caller.start()
        deadline = time.monotonic() + END_S
        while len(statuses) < 40 and time.monotonic() < deadline:
            time.sleep(0.02)
        server.process.send_signal(signal.SIGTERM)
        for caller in callers:
            caller.join(END_S)
        stop.set()
        # The light is red and the door still open; health is the last that answers.
        ready = httpx.get(f"{server.url}/readyz", timeout=END_S)
        assert (ready.status_code, "shutting down" in ready.text) == (503, True)
        assert httpx.get(f"{server.url}/healthz", timeout=END_S).status_code == 200
        assert server.process.wait(END_S) in (0, -signal.SIGTERM)
    assert lost == []
    assert statuses.count(200) >= 40
    assert set(statuses) == {200, 503}
    for answer in refused:
        assert answer.json()["error"]["code"] == "draining"
        assert int(answer.headers["retry-after"]) >= 1
    assert "Traceback" not in server.log.read_text()


def cpu_s(server: Serving) -> float:
    """CPU time of a server so far; it grows while the server works on a request."""
    times = psutil.Process(server.process.pid).cpu_times()
    return float(times.user + times.system)


async def test_sigterm_lets_a_slow_request_end(tmp_path: Path) -> None:
    # The embedded policy is slow enough to be caught in the middle.
    arguments = ("--policy", "embedded")
    variables = {"QGUIDE_DRAIN_DELAY_S": "0"}
    body = {"messages": [USER], "num_candidates": 64, "max_tokens": 400, "temperature": 3}
    with serving_process(tmp_path, *arguments, environment=variables) as server:
        async with httpx.AsyncClient(base_url=server.url, timeout=END_S) as client:
            idle_s = cpu_s(server)
            slow = asyncio.create_task(client.post("/v1/act", json=body))
            while cpu_s(server) < idle_s + 0.5:
                await asyncio.sleep(0.02)
            assert not slow.done()
            server.process.send_signal(signal.SIGTERM)
            answer = await slow
        assert answer.status_code == 200
        assert len(answer.json()["candidates"]) == 64
        assert server.process.wait(END_S) in (0, -signal.SIGTERM)


async def test_sigterm_lets_a_stream_end(tmp_path: Path) -> None:
    arguments = ("--policy", "embedded")
    variables = {"QGUIDE_DRAIN_DELAY_S": "0", "QGUIDE_HEARTBEAT_S": "0.05"}
    body = stream_of("look") | {"max_tokens": 400, "temperature": 3}
    body["qguide"] = {"num_candidates": 64}
    with serving_process(tmp_path, *arguments, environment=variables) as server:
        async with (
            httpx.AsyncClient(base_url=server.url, timeout=END_S) as client,
            client.stream("POST", CHAT, json=body) as answer,
        ):
            lines = answer.aiter_lines()
            assert await anext(lines) == ": still working"
            server.process.send_signal(signal.SIGTERM)
            said = [line async for line in lines if line.startswith("data: ")]
        assert answer.status_code == 200
        assert said[-1] == "data: [DONE]"
        assert len(json.loads(said[-2][len("data: ") :])["qguide"]["q_values"]) == 64
        assert server.process.wait(END_S) in (0, -signal.SIGTERM)


def cut_off(ask: Callable[[str], Answer]) -> Answer:
    """The answer of a server that shuts down while an upstream is silent."""
    fake = FakeUpstream(fault="hang")
    with serving_app(fake.app()) as behind, ThreadPoolExecutor() as pool:
        slow = Upstream.model_validate({"url": f"{behind}/v1", "model": "m"})
        more = {"upstreams": {"slow": slow}, "shutdown_timeout_s": 1, "heartbeat_s": 0.1}
        app = create_app(FAKES.model_copy(update=more))
        with serving_app(app) as url:
            waiting = pool.submit(ask, url)
            patience = time.monotonic() + END_S
            while not fake.asked and time.monotonic() < patience:
                time.sleep(0.05)
            app.state.drain.draining = True  # as SIGTERM does
        return waiting.result(END_S)


def test_a_request_cut_off_by_the_shutdown_is_503() -> None:
    body = {"messages": [USER], "policy": "slow"}
    answer = cut_off(lambda url: httpx.post(f"{url}/v1/act", json=body, timeout=END_S))
    assert answer.status_code == 503, answer.text
    assert answer.json()["error"]["code"] == "draining"
    assert answer.headers["retry-after"] == "1"
    assert answer.headers["x-request-id"] == answer.json()["error"]["request_id"]


def test_a_stream_cut_off_by_the_shutdown_ends_with_an_error() -> None:
    body = stream_of("look") | {"model": "slow"}
    answer = cut_off(lambda url: httpx.post(f"{url}{CHAT}", json=body, timeout=END_S))
    assert answer.status_code == 200
    *_, last = [line for line in answer.text.splitlines() if line]
    assert json.loads(last.removeprefix("data: "))["error"]["code"] == "draining"


async def test_a_body_of_ten_megabytes_is_413(url: str, scorer: GatedScorer) -> None:
    scorer.gate.set()
    async with httpx.AsyncClient(base_url=url, timeout=END_S) as client:
        big = asyncio.create_task(
            client.post("/v1/score", content=b'{"messages": [' + b" " * 10_000_000)
        )
        other = await client.post("/v1/score", json=SCORE)
        assert other.status_code == 200
        answer = await big
        assert (answer.status_code, answer.json()["error"]["code"]) == (413, "body_too_large")
        assert (await client.post("/v1/score", json=SCORE)).status_code == 200
    assert len(scorer.asked) == 2


async def test_a_history_of_a_million_tokens_is_refused_before_it_is_counted(
    url: str, scorer: GatedScorer
) -> None:
    scorer.gate.set()
    async with httpx.AsyncClient(base_url=url, timeout=END_S) as client:
        long = asyncio.create_task(client.post("/v1/score", json=say("a " * 1_000_000)))
        other = await client.post("/v1/score", json=SCORE)
        assert other.status_code == 200
        answer = await long
        error = answer.json()["error"]
        assert (answer.status_code, error["code"]) == (400, "history_too_long")
        assert "shorten it" in error["message"]
    assert scorer.asked == ["look"]


async def test_a_flood_from_one_key_leaves_the_others_unhurt(
    tmp_path: Path, scorer: GatedScorer
) -> None:
    keys_file = tmp_path / "keys.json"
    flood, other = create_key(keys_file, "flood"), create_key(keys_file, "other")
    settings = Settings(
        **FAKES.model_dump() | {"keys_file": keys_file, "concurrent_requests": 8, "timeout_s": 60}
    )
    thread = DeviceThread(max_waiting=16)
    build = lambda _: models_of(ScriptedPolicy(), scorer, thread)  # noqa: E731
    with serving_app(create_app(settings, build=build)) as url:
        limits = httpx.Limits(max_connections=200)
        async with (
            httpx.AsyncClient(
                base_url=url, timeout=END_S, limits=limits, headers={"X-API-Key": flood}
            ) as floods,
            httpx.AsyncClient(base_url=url, timeout=END_S, headers={"X-API-Key": other}) as others,
        ):
            sent = [
                asyncio.create_task(floods.post("/v1/score", json=say(f"flood {n}")))
                for n in range(100)
            ]
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

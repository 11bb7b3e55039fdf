"""Redis, a server or the thread that scores is lost: what callers see, and that nobody else is hurt."""

import asyncio
import json
import threading
import time
from collections.abc import Mapping
from contextlib import AbstractContextManager
from pathlib import Path

import httpx

from qguide.qnet.device.device_thread import DeviceThread
from qguide.server.http.keys import create_key
from tests.support.gated_scorer import END_S, SCORE, USER, GatedScorer, entered, say
from tests.support.queues import until_waiting
from tests.support.redis_server import RedisServer, require_redis
from tests.support.serving import Serving, serving_process


def test_of_servers_without_redis_that_share_a_folder_one_is_killed_and_no_step_is_lost(tmp_path: Path) -> None:
    episodes = tmp_path / "episodes"
    variables = {"QGUIDE_EPISODES_DIR": str(episodes), "QGUIDE_LEARN": "true"}
    history: dict[str, list[dict[str, str]]] = {name: [USER] for name in ("killed", "living", "ended")}

    def step(server: Serving, name: str, headers: Mapping[str, str] | None = None) -> None:
        asked = {"messages": history[name], "episode_id": name}
        answer = httpx.post(f"{server.url}/v1/act", json=asked, headers=headers, timeout=END_S)
        assert answer.status_code == 200, answer.text
        history[name] += [{"role": "assistant", "content": answer.json()["action"]}, USER]

    def start(name: str) -> AbstractContextManager[Serving]:
        (tmp_path / name).mkdir()
        return serving_process(tmp_path / name, environment=variables)

    with start("one") as one, start("other") as other:
        for _ in range(2):
            step(one, "killed")
            step(other, "living")
        step(one, "ended", {"X-QGuide-Outcome": "0.5"})
        one.process.kill()
        one.process.wait()
        with start("next") as begun:
            step(begun, "killed", {"X-QGuide-Outcome": "1"})
            step(other, "living", {"X-QGuide-Outcome": "0"})
            for name, reward in (("killed", 1.0), ("ended", 0.5)):  # told once more
                told = httpx.post(f"{begun.url}/v1/episodes/{name}/outcome", json={"reward": reward})
                assert told.json()["recorded"], told.text
            state = httpx.get(f"{begun.url}/v1/learning", timeout=END_S).json()
    trees = [json.loads(row) for path in episodes.glob("trees-*") for row in path.read_text().splitlines()]
    assert sorted((len(tree["nodes"]), tree["nodes"][-1]["reward"]) for tree in trees) == [(1, 0.5), (3, 0.0), (3, 1.0)]
    assert (state["episodes"], state["successful"]) == (3, 0.5)


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
                    assert answer.json()["warnings"] == []
                    # The scripted policy has one reply, whatever the words of the task.
                    assert "candidates are equal" in answer.json()["unguided_reason"]
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
                while f"qguide_redis_up {float(gauge)}" not in client.get("/metrics").text:
                    assert time.monotonic() < deadline, "the page of a second stays"
                    time.sleep(0.05)

            left = client.post("/v1/score", json=SCORE).headers["ratelimit-remaining"]
            assert (redis_is(), left) == ("ok", "999")
            steps(1)
            redis.kill()
            steps(2)
            for _ in range(5):
                answer = client.post("/v1/score", json=SCORE)
                assert answer.status_code == 200
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
        others = [asyncio.create_task(client.post("/v1/score", json=say(f"wait {n}"))) for n in range(3)]
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

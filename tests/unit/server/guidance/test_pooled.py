"""Steps whose candidates several policies draw."""

from collections import Counter
from typing import Any

import pytest
from fastapi.testclient import TestClient

from qguide.qnet.errors import UpstreamUnavailableError
from qguide.qnet.policies.pool import PolicyPool
from qguide.qnet.policies.scripted import ScriptedPolicy
from qguide.qnet.types import Candidate, History, Message, Sampling
from qguide.server.chat.fake_openai import FakeUpstream
from qguide.server.settings.remote_models import Upstream
from qguide.server.settings.settings import Settings
from tests.support.serving import serving_app
from tests.unit.server.conftest import FAKES, Serve

TASK = [{"role": "user", "content": "You see a desk. Your task is to: take the mug."}]
PRICES = {"prompt": 1.0, "completion": 2.0}


class Broken:
    """A policy that is never there."""

    name = "broken"

    async def sample(self, history: History, *, n: int, sampling: Sampling) -> list[Candidate]:
        """Fail."""
        raise UpstreamUnavailableError(f"{n} draws and no answer")


async def drawn(pool: PolicyPool, n: int) -> Counter[str]:
    history = (Message("user", "Go."),)
    return Counter(one.policy for one in await pool.sample(history, n=n, sampling=Sampling()))


async def test_every_batch_of_a_step_is_drawn_in_the_shares() -> None:
    pool = PolicyPool([("a", ScriptedPolicy(["x"]), 4), ("b", ScriptedPolicy(["y"]), 2)])
    assert pool.name == "a+b"
    assert [await drawn(pool, 3) for _ in range(2)] == [{"a": 2, "b": 1}] * 2
    assert await drawn(pool, 6) == {"a": 4, "b": 2}


async def test_a_policy_that_fails_costs_its_own_candidates_only() -> None:
    pool = PolicyPool([("a", ScriptedPolicy(["x"]), 3), ("b", Broken(), 2)])
    assert await drawn(pool, 5) == {"a": 3}
    assert str(pool.failures["b"]) == "2 draws and no answer"
    with pytest.raises(UpstreamUnavailableError):
        await drawn(PolicyPool([("b", Broken(), 2), ("c", Broken(), 1)]), 3)


async def test_where_all_draws_of_a_batch_fail_the_other_policies_draw_it() -> None:
    pool = PolicyPool([("a", ScriptedPolicy(["x"]), 1), ("b", Broken(), 3)])
    assert [await drawn(pool, 1) for _ in range(3)] == [{"a": 1}] * 3


async def test_one_candidate_of_the_pool_is_greedy_and_it_is_the_first() -> None:
    asked: list[tuple[str, bool]] = []

    class Noted(ScriptedPolicy):
        async def sample(self, history: History, *, n: int, sampling: Sampling) -> list[Candidate]:
            asked.append((self._replies[0], sampling.first_greedy))
            return await super().sample(history, n=n, sampling=sampling)

    pool = PolicyPool([("a", Noted(["x"]), 1), ("b", Noted(["y"]), 4)])
    history = (Message("user", "Go."),)
    found = await pool.sample(history, n=2, sampling=Sampling(first_greedy=True))
    assert (asked, found[0].policy) == ([("x", True), ("y", False)], "a")


@pytest.fixture
def small() -> FakeUpstream:
    """One of the upstreams."""
    return FakeUpstream(replies=["Action: wait"])


@pytest.fixture
def client(serve: Serve, small: FakeUpstream) -> Any:
    """A server in front of three upstreams: `large`, `small`, and `gone`, where nothing listens."""
    large = FakeUpstream(replies=["Action: look"])
    with serving_app(large.app()) as one, serving_app(small.app()) as other:
        urls = {"large": f"{one}/v1", "small": f"{other}/v1", "gone": "http://127.0.0.1:9/v1"}
        upstreams = {
            name: Upstream.model_validate({"url": url, "model": f"{name}-1", "retries": 0, "prices": PRICES})
            for name, url in urls.items()
        }
        settings: Settings = FAKES.model_copy(update={"upstreams": upstreams, "policy": "large"})
        yield serve(settings)


def shares(**names: int) -> list[dict[str, Any]]:
    return [{"name": name, "n": n} for name, n in names.items()]


def act(client: TestClient, **body: Any) -> Any:
    return client.post("/v1/act", json={"messages": TASK} | body).json()


def test_each_candidate_tells_its_policy_and_each_policy_its_cost(client: TestClient) -> None:
    answer = act(client, policies=shares(large=1, small=2))
    assert answer["policy"] == "large+small"
    assert Counter(one["policy"] for one in answer["candidates"]) == {"large": 1, "small": 2}
    for one, n in zip(answer["policies"], (1, 2), strict=True):
        assert one["candidates"] == n
        cost = one["prompt_tokens"] * PRICES["prompt"] + one["completion_tokens"] * 2.0
        assert one["cost"] == pytest.approx(cost / 1e6)
    total = sum(one["completion_tokens"] for one in answer["policies"])
    assert answer["usage"]["completion_tokens"] == total > 0
    assert answer["guided"]
    assert "policies" not in act(client)


def test_an_upstream_that_is_gone_costs_its_candidates_and_is_told(client: TestClient) -> None:
    answer = act(client, policies=shares(large=2, gone=3))
    assert len(answer["candidates"]) == 2
    assert [one["candidates"] for one in answer["policies"]] == [2, 0]
    assert "cannot be reached" in answer["policies"][1]["error"]
    assert any("policy gone drew none" in warning for warning in answer["warnings"])
    assert answer["draws_saved"] == 0


def test_an_upstream_that_fails_after_some_of_its_candidates_is_told(client: TestClient, small: FakeUpstream) -> None:
    small.fault, small.faults_left = "policy", 1
    answer = act(client, policies=shares(large=1, small=3), max_wait_s=60)
    assert [one["candidates"] for one in answer["policies"]] == [2, 2]
    error = answer["policies"][1]["error"]
    assert "upstream small refused" in error
    assert f"policy small drew 2 before it failed: {error}" in answer["warnings"]


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/chat/completions", {"messages": TASK}),
        ("/v1/completions", {"prompt": "Go."}),
        ("/v1/responses", {"input": "Go."}),
        ("/v1/messages", {"messages": TASK, "max_tokens": 9}),
        ("/v1beta/models/large:generateContent", {"contents": [{"role": "user", "parts": [{"text": "Go."}]}]}),
        ("/api/chat", {"messages": TASK, "stream": False}),
        ("/api/generate", {"prompt": "Go.", "stream": False}),
    ],
)
def test_clients_of_every_dialect_name_them_in_a_header(client: TestClient, path: str, body: dict[str, Any]) -> None:
    asked = {"model": "large"} | body | {"qguide": {"return_candidates": True}}
    if ":generateContent" in path:
        del asked["model"]
    answer = client.post(path, json=asked, headers={"X-QGuide-Policies": "large=2, small=1, gone=2"})
    assert answer.status_code == 200, answer.text
    told = answer.json()["qguide"]
    assert Counter(one["policy"] for one in told["candidates"]) == {"large": 2, "small": 1}
    large, small, gone = told["policies"]
    for one, name, n in ((large, "large", 2), (small, "small", 1)):
        assert (one["name"], one["candidates"]) == (name, n)
        assert one["completion_tokens"] > 0
        cost = one["prompt_tokens"] * PRICES["prompt"] + one["completion_tokens"] * PRICES["completion"]
        assert one["cost"] == pytest.approx(cost / 1e6)
    assert (gone["name"], gone["candidates"], gone["completion_tokens"]) == ("gone", 0, 0)
    assert "cannot be reached" in gone["error"]
    refused = client.post(path, json=asked, headers={"X-QGuide-Policies": "large=x"})
    assert refused.status_code == 400
    assert "x-qguide-policies" in refused.text.lower()


@pytest.mark.parametrize(
    ("body", "code"),
    [
        ({"policies": shares(large=2), "num_candidates": 3}, "invalid_candidates"),
        ({"policies": [*shares(large=1), *shares(large=2)]}, "invalid_request"),
        ({"policies": shares(large=1, other=1)}, "unknown_model"),
        ({"policies": shares(large=40, small=40)}, "invalid_candidates"),
        ({"policies": [{"name": "large"}, *shares(small=1)]}, "invalid_request"),
        ({"policies": [{"name": "large"}, {"name": "small"}]}, "invalid_request"),
    ],
)
def test_shares_that_cannot_be_drawn_are_refused(client: TestClient, body: dict[str, Any], code: str) -> None:
    assert act(client, **body)["error"]["code"] == code


def test_a_policy_in_this_process_does_not_draw_without_the_tools(serve: Serve) -> None:
    upstream = Upstream.model_validate({"url": "http://127.0.0.1:9/v1", "model": "m"})
    client = serve(FAKES.model_copy(update={"upstreams": {"large": upstream}}))
    asked = {"model": "large", "messages": TASK, "qguide": {"policies": shares(large=1, scripted=2)}}
    tool = {"type": "function", "function": {"name": "look", "parameters": {}}}
    refused = client.post("/v1/chat/completions", json=asked | {"tools": [tool]})
    assert refused.status_code == 400
    assert "'scripted' runs in this process and knows no tools" in refused.text


def test_addresses_are_checked_for_every_upstream_of_the_pool(serve: Serve) -> None:
    upstream = Upstream.model_validate({"url": "http://127.0.0.1:9/v1", "model": "m"})
    client = serve(FAKES.model_copy(update={"upstreams": {"large": upstream}}))
    turn = TASK[0] | {"image_url": "http://10.0.0.1/"}
    asked = {"messages": [turn], "qguide": {"policies": shares(large=2)}}
    refused = client.post("/v1/chat/completions", json=asked)
    assert refused.status_code == 400
    assert "image_url" in refused.json()["error"]["message"]

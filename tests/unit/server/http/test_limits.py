"""Limits of a caller, and the answers to requests beyond them."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from qguide.server.http.admission import Caller, Limiter
from qguide.server.http.errors import OverLimitError
from qguide.server.http.keys import create_key
from qguide.server.observability.request_context import Account
from tests.unit.server.conftest import FAKES, Serve

BODY = {"messages": [{"role": "user", "content": "look"}], "num_candidates": 2}


def bearer(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


def act(client: TestClient, key: str | None = None) -> Any:
    return client.post("/v1/act", json=BODY, headers=bearer(key) if key else {})


def test_requests_over_the_minutes_are_429_and_other_keys_go_on(serve: Serve, tmp_path: Path) -> None:
    keys_file = tmp_path / "keys.json"
    ada = create_key(keys_file, "ada", requests_per_minute=2)
    bob = create_key(keys_file, "bob")
    client = serve(FAKES.model_copy(update={"keys_file": keys_file}))
    first, second, third = (act(client, ada) for _ in range(3))
    assert (first.headers["ratelimit-limit"], first.headers["ratelimit-remaining"]) == ("2", "1")
    assert (second.status_code, second.headers["ratelimit-remaining"]) == (200, "0")
    error = third.json()["error"]
    assert (third.status_code, error["code"]) == (429, "rate_limited")
    assert "ada has used up its 2 requests of this minute" in error["message"]
    assert 55 <= int(third.headers["retry-after"]) <= 60
    assert third.headers["ratelimit-limit"] == "2"
    assert third.headers["ratelimit-remaining"] == "0"
    assert third.headers["ratelimit-reset"] == third.headers["retry-after"]
    metrics = client.get("/metrics", headers=bearer(bob)).text
    assert 'qguide_requests_total{route="/v1/act",status="429"} 1.0' in metrics
    assert client.get("/healthz").status_code == 200
    answer = act(client, bob)
    assert answer.status_code == 200
    assert "ratelimit-limit" not in answer.headers


def test_tokens_are_charged_when_spent_and_then_used_up(serve: Serve) -> None:
    client = serve(FAKES.model_copy(update={"tokens_per_day": 10}))
    answer = act(client)
    usage = answer.json()["usage"]
    spent = usage["prompt_tokens"] + usage["completion_tokens"] + usage["scored_tokens"]
    assert spent > 10
    assert answer.status_code == 200
    refused = act(client)
    error = refused.json()["error"]
    assert (refused.status_code, error["code"]) == (429, "tokens_used_up")
    assert "has used up its 10 tokens of 24 hours" in error["message"]
    assert 86_000 < int(refused.headers["retry-after"]) <= 86_400
    assert refused.headers["ratelimit-limit"] == "10"
    assert refused.headers["ratelimit-remaining"] == "0"
    assert refused.headers["ratelimit-reset"] == refused.headers["retry-after"]


def test_what_is_refused_or_drawn_from_nothing_costs_no_tokens(serve: Serve) -> None:
    client = serve(FAKES.model_copy(update={"tokens_per_day": 10}))
    for _ in range(3):
        assert client.post("/v1/act", json={}).status_code == 422
    assert act(client).status_code == 200


def test_metrics_are_watched_whatever_the_limits(serve: Serve) -> None:
    settings = {"requests_per_minute": 1, "tokens_per_day": 1, "concurrent_requests": 1}
    client = serve(FAKES.model_copy(update=settings))
    assert [act(client).status_code for _ in range(2)] == [200, 429]
    for _ in range(2):
        metrics = client.get("/metrics")
        assert metrics.status_code == 200
        assert "ratelimit-limit" not in metrics.headers


@pytest.mark.parametrize("most", [1, 2])
async def test_a_caller_has_so_many_requests_at_once(most: int) -> None:
    limiter = Limiter(None, concurrent_requests=most)
    ada, bob = (Caller(name, False, 0, 0) for name in ("ada", "bob"))
    done = asyncio.Event()

    async def run() -> None:
        async with limiter.admit(ada, Account()):
            await done.wait()

    running = [asyncio.create_task(run()) for _ in range(most)]
    await asyncio.sleep(0)
    with pytest.raises(OverLimitError, match=f"ada .*{most} requests") as refused:
        async with limiter.admit(ada, Account()):
            pass
    assert (refused.value.code, refused.value.retry_after_s) == ("too_many_at_once", 1)
    assert refused.value.headers["RateLimit-Limit"] == str(most)
    async with limiter.admit(bob, Account()):
        pass
    async with limiter.admit(ada, Account(), kind="look"):
        done.set()
        await asyncio.gather(*running)
        assert limiter.running == 1
        async with limiter.admit(ada, Account()):  # a look takes no place of work
            pass
    async with limiter.admit(ada, Account()):
        pass


async def test_looks_that_wait_are_limited_and_ends_are_not() -> None:
    limiter = Limiter(None, concurrent_requests=1)
    ada = Caller("ada", False, requests_per_minute=0, tokens_per_day=0)
    async with limiter.admit(ada, Account(), kind="look"):
        with pytest.raises(OverLimitError, match=r"ada .*1 requests"):
            async with limiter.admit(ada, Account(), kind="look"):
                pass
        async with limiter.admit(ada, Account(), kind="end"):
            pass


async def test_retry_after_is_true(monkeypatch: pytest.MonkeyPatch) -> None:
    limiter = Limiter(None, concurrent_requests=0)
    ada = Caller("ada", False, requests_per_minute=1, tokens_per_day=0)
    now = 1_000_000.0
    monkeypatch.setattr("time.time", lambda: now)
    async with limiter.admit(ada, Account()):
        pass
    now += 12.5
    with pytest.raises(OverLimitError) as refused:
        async with limiter.admit(ada, Account()):
            pass
    now += refused.value.retry_after_s
    async with limiter.admit(ada, Account()):
        pass
    assert refused.value.retry_after_s == 48, "the whole seconds that are left, rounded up"


def test_keys_are_told_apart_in_the_metrics_by_their_names(serve: Serve, tmp_path: Path) -> None:
    keys_file = tmp_path / "keys.json"
    ada = create_key(keys_file, "ada", requests_per_minute=1)
    create_key(keys_file, "bob")
    client = serve(FAKES.model_copy(update={"keys_file": keys_file, "public_metrics": True}))
    usage = act(client, ada).json()["usage"]
    assert act(client, ada).status_code == 429
    text = client.get("/metrics").text
    tokens = usage["prompt_tokens"] + usage["completion_tokens"] + usage["scored_tokens"]
    assert 'qguide_key_requests_total{key="ada",status="200"} 1.0' in text
    assert 'qguide_key_requests_total{key="ada",status="429"} 1.0' in text
    assert f'qguide_key_tokens_total{{key="ada"}} {float(tokens)}' in text
    assert 'key="bob"' not in text
    assert ada not in text


@pytest.mark.parametrize("path", ["/v1/act", "/episodes/e/v1/chat/completions"])
def test_what_is_refused_before_its_route_runs_is_counted_under_it(serve: Serve, tmp_path: Path, path: str) -> None:
    keys_file = tmp_path / "keys.json"
    create_key(keys_file, "ada")
    client = serve(FAKES.model_copy(update={"keys_file": keys_file, "public_metrics": True}))
    assert client.post(path, json=BODY).status_code == 401
    assert client.get("/v1/models/a/b").status_code == 401
    assert client.get("/v1/nowhere").status_code == 401
    text = client.get("/metrics").text
    for route in (path.removeprefix("/episodes/e"), "/v1/models/{model_id:text}", "unknown"):
        assert f'qguide_requests_total{{route="{route}",status="401"}} 1.0' in text

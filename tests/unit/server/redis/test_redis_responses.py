"""Stored responses of several servers in one Redis."""

import time
from collections.abc import Callable
from typing import Any

import httpx
import pytest
from fastapi.testclient import TestClient
from pydantic import SecretStr
from redis import Redis

from qguide.server.app import create_app
from qguide.server.chat.fake_openai import FakeUpstream
from tests.support.redis_server import RedisServer
from tests.support.serving import serving_app
from tests.unit.server.conftest import Serve, settings_of

TASK = "Your task is to: find the mug."


@pytest.fixture
def pair(
    serve: Serve, redis: RedisServer, address: tuple[FakeUpstream, str], upstream: FakeUpstream
) -> tuple[TestClient, TestClient]:
    """Two servers of one service."""
    settings = settings_of(address[1], redis_url=SecretStr(redis.url))
    return serve(settings), serve(settings)


def ask(client: TestClient, **body: Any) -> Any:
    answer = client.post("/v1/responses", json={"input": TASK} | body)
    assert answer.status_code == 200, answer.text
    return answer.json()


def wait_until(is_so: Callable[[], bool]) -> None:
    until = time.monotonic() + 30
    while not is_so():
        assert time.monotonic() < until
        time.sleep(0.05)


def test_another_server_continues_shows_and_deletes_a_response(
    pair: tuple[TestClient, TestClient], upstream: FakeUpstream
) -> None:
    one, other = pair
    first = ask(one, qguide={"num_candidates": 2})
    ask(other, input="You see a mug.", previous_response_id=f"{first['id']}.0")
    assert [turn["role"] for turn in upstream.asked[-1]["messages"]] == [*("user", "assistant", "user")]
    path = f"/v1/responses/{first['id']}"
    assert other.get(path).json() == first
    assert other.get(f"{path}/input_items").json()["data"][0]["content"][0]["text"] == TASK
    assert other.delete(path).json()["deleted"]
    assert one.get(path).status_code == 404


def test_a_conversation_goes_on_at_another_server(pair: tuple[TestClient, TestClient], upstream: FakeUpstream) -> None:
    one, other = pair
    talk = one.post("/v1/conversations", json={}).json()["id"]
    ask(one, conversation=talk)
    ask(other, conversation=talk, input="You see a mug.")
    assert len(upstream.asked[-1]["messages"]) == 3
    assert len(one.get(f"/v1/conversations/{talk}/items").json()["data"]) == 4


@pytest.mark.parametrize(("how", "by_another"), [("cancel", True), ("cancel", False), ("delete", True)])
def test_any_server_stops_the_draws_of_a_response_in_the_background(
    redis: RedisServer, address: tuple[FakeUpstream, str], upstream: FakeUpstream, how: str, by_another: bool
) -> None:
    upstream.delay_s = 45.0
    # The work takes the only place; looks at responses and their cancellation come in addition.
    limits = {"timeout_s": 90, "concurrent_requests": 1}
    settings = settings_of(address[1], redis_url=SecretStr(redis.url), **limits)
    with serving_app(create_app(settings)) as one, serving_app(create_app(settings)) as other:
        body = {"input": TASK, "background": True}
        begun = httpx.post(f"{one}/v1/responses", json=body, timeout=30).json()
        wait_until(lambda: bool(upstream.asked))
        busy = f"{one}/v1/models"
        assert httpx.get(busy).status_code == 429
        path = f"{other if by_another else one}/v1/responses/{begun['id']}"
        shown = f"{other}/v1/responses/{begun['id']}"
        assert httpx.get(shown).json()["status"] == "queued"
        answer = httpx.post(f"{path}/cancel") if how == "cancel" else httpx.delete(path)
        assert answer.status_code == 200
        wait_until(lambda: httpx.get(busy).status_code == 200)
        found = httpx.get(shown)
        assert found.status_code == (200 if how == "cancel" else 404)
        assert how == "delete" or found.json()["status"] == "cancelled"


def test_a_websocket_continues_what_another_server_stored_and_keeps_its_own_out_of_redis(
    pair: tuple[TestClient, TestClient], redis: RedisServer, upstream: FakeUpstream
) -> None:
    one, other = pair
    stored = ask(one)
    with other.websocket_connect("ws://127.0.0.1/v1/responses") as socket:
        previous = stored["id"]
        for said in ("You see a mug.", "You have it."):
            sent = {"type": "response.create", "input": said, "store": False}
            socket.send_json(sent | {"previous_response_id": previous})
            while (event := socket.receive_json())["type"] != "response.completed":
                assert event["type"] != "error", event
            previous = event["response"]["id"]
        kept = Redis.from_url(redis.url).keys("*:responses:*")
        assert len(kept) == len(stored["output"]) + 2  # the response, and its items by their ids
    assert [turn["content"] for turn in upstream.asked[-1]["messages"] if turn["role"] == "user"] == [
        *(TASK, "You see a mug.", "You have it.")
    ]

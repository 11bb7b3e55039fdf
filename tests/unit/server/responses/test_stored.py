"""Responses that later requests continue: for whom, and for how long."""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi.testclient import TestClient

from qguide.server.app import create_app
from qguide.server.chat.fake_openai import FakeUpstream
from qguide.server.http.errors import BodyTooLargeError
from qguide.server.http.keys import create_key
from qguide.server.http.long_bodies import LONG_BYTES, LongBodies
from qguide.server.observability.request_context import open_account
from qguide.server.responses.shelf import Shelf
from tests.support.serving import serving_app
from tests.unit.server.conftest import Serve, settings_of

TASK = "You see a desk. Your task is to: take the mug."


def ask(client: TestClient, key: str = "", **body: Any) -> Any:
    asked = {"input": TASK, "qguide": {"num_candidates": 2}} | body
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    return client.post("/v1/responses", json=asked, headers=headers).json()


def test_nothing_is_stored_where_the_caller_or_the_operator_wants_that(
    serve: Serve, address: tuple[FakeUpstream, str], guided: TestClient
) -> None:
    answer = ask(guided, store=False)
    assert answer["store"] is False
    assert guided.get(f"/v1/responses/{answer['id']}").status_code == 404
    client = serve(settings_of(address[1], responses_ttl_s=0))
    answer = ask(client)
    assert answer["store"] is False
    assert client.get(f"/v1/responses/{answer['id']}").status_code == 404
    refused = ask(client, previous_response_id=answer["id"])["error"]
    assert "stores no responses" in refused["message"]
    assert client.post("/v1/conversations", json={}).status_code == 404


def test_no_key_reads_or_continues_anothers(serve: Serve, address: tuple[FakeUpstream, str], tmp_path: Path) -> None:
    ada, bob = (create_key(tmp_path / "keys.json", name) for name in ("ada", "bob"))
    client = serve(settings_of(address[1], keys_file=tmp_path / "keys.json"))
    answer = ask(client, ada)
    path = f"/v1/responses/{answer['id']}"
    for key, status in ((ada, 200), (bob, 404)):
        assert client.get(path, headers={"X-API-Key": key}).status_code == status
    assert ask(client, bob, previous_response_id=answer["id"])["error"]["code"] == ("previous_response_not_found")
    assert ask(client, ada, previous_response_id=answer["id"])["status"] == "completed"


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"previous_response_id": "resp_1"}, "previous_response_id"),
        ({"conversation": "conv_1"}, "conversation"),
        ({"input": [{"type": "item_reference", "id": "msg_1"}]}, "input"),
    ],
)
def test_what_is_not_stored_is_named(guided: TestClient, body: Any, param: str) -> None:
    error = ask(guided, **body)["error"]
    assert (error["code"], error["param"]) == ("previous_response_not_found", param)
    assert "send the items themselves" in error["message"]


@pytest.fixture
def bodies() -> Iterator[LongBodies]:
    bodies = LongBodies()
    yield bodies
    bodies.close()


def shelf_of(bodies: LongBodies, *, ttl_s: float = 60, max_body_bytes: int = 1000) -> Shelf:
    return Shelf(None, bodies, max_bytes=100, max_body_bytes=max_body_bytes, ttl_s=ttl_s)


async def put(shelf: Shelf, **objects: Any) -> None:
    await shelf.put(lambda: objects, size=0)


async def test_the_oldest_go_first_and_what_is_too_large_is_not_kept(bodies: LongBodies) -> None:
    shelf = shelf_of(bodies)
    await put(shelf, a={"text": "x" * 30})
    await put(shelf, b={"text": "x" * 30})
    await put(shelf, c={"text": "x" * 30}, d={"text": "x" * 300})
    assert [one is not None for one in await shelf.get(["a", "b", "c", "d"])] == [*(False, True, True, False)]


async def test_a_key_that_fills_the_memory_drives_out_its_own(bodies: LongBodies) -> None:
    shelf = shelf_of(bodies)
    with open_account() as account:
        account.key = "ada"
        await put(shelf, a={"text": "x" * 20})
    with open_account() as account:
        account.key = "bob"
        for name in "abcd":
            await put(shelf, **{name: {"text": "x" * 20}})
        assert [one is not None for one in await shelf.get([*"abcd"])] == [False, False, True, True]
    with open_account() as account:
        account.key = "ada"
        assert await shelf.get(["a"]) == [{"text": "x" * 20}]


async def test_what_is_stored_expires(bodies: LongBodies) -> None:
    shelf = shelf_of(bodies, ttl_s=1e-6)
    await put(shelf, a={})
    assert await shelf.get(["a"]) == [None]


async def test_what_is_continued_is_no_larger_than_four_bodies_may_be(bodies: LongBodies) -> None:
    shelf = shelf_of(bodies, max_body_bytes=15)
    await put(shelf, a={"text": "x" * 30}, b={"text": "x" * 30})
    assert await shelf.get(["a"]) == [{"text": "x" * 30}]
    with pytest.raises(BodyTooLargeError, match=r"60 bytes; .* QGUIDE_MAX_BODY_BYTES"):
        await shelf.get(["a", "b"])


def test_what_is_cancelled_does_not_end_as_failed(address: tuple[FakeUpstream, str], upstream: FakeUpstream) -> None:
    upstream.delay_s = 45.0
    # The one place that its caller has is the response's own, which looks and the end need none of.
    app = create_app(settings_of(address[1], timeout_s=90, concurrent_requests=1))
    with serving_app(app) as url, httpx.Client(base_url=f"{url}/v1", timeout=30) as client:
        body = {"input": f"{TASK} {'x' * 4 * LONG_BYTES}", "background": True}
        path = f"/responses/{client.post('/responses', json=body).json()['id']}"
        until = time.monotonic() + 30
        while not upstream.asked:
            assert time.monotonic() < until
            time.sleep(0.05)
        assert client.post("/responses", json=body).status_code == 429
        assert client.get(path).json()["status"] == "queued"
        assert client.post(f"{path}/cancel").json()["status"] == "cancelled"
        for _ in range(10):  # while the work ends
            assert client.get(path).json()["status"] == "cancelled"
            time.sleep(0.1)


def test_a_conversations_metadata_is_replaced_and_its_items_stay(guided: TestClient) -> None:
    said = {"type": "message", "role": "user", "content": TASK}
    begun = {"items": [said], "metadata": {"a": "b"}}
    talk = guided.post("/v1/conversations", json=begun).json()["id"]
    path = f"/v1/conversations/{talk}"
    changed = guided.post(path, json={"metadata": {"x": "y"}}).json()
    assert changed["metadata"] == {"x": "y"}
    assert guided.post(path, json={"meta": {}}).status_code == 400
    assert changed == guided.get(path).json()
    [item] = guided.get(f"{path}/items").json()["data"]
    assert item["content"][0]["text"] == TASK

"""WebSocket Responses on a server in this process."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient
from starlette.testclient import WebSocketDenialResponse, WebSocketTestSession
from starlette.websockets import WebSocketDisconnect

from qguide.server.chat.fake_openai import DEFAULT_REPLIES, FakeUpstream
from qguide.server.http.keys import create_key
from tests.unit.server.conftest import Serve, settings_of

TASK = "find the mug"


@contextmanager
def connected(client: TestClient, path: str = "/v1/responses", **headers: str) -> Iterator[WebSocketTestSession]:
    with client.websocket_connect(f"ws://127.0.0.1{path}", headers=headers) as socket:
        yield socket


def refusal(client: TestClient, **headers: str) -> tuple[int, str]:
    """Status and code of a handshake that is refused."""
    with pytest.raises(WebSocketDenialResponse) as refused, connected(client, **headers):
        pass
    return refused.value.status_code, refused.value.json()["error"]["code"]


def events(socket: WebSocketTestSession, **body: Any) -> list[Any]:
    """The events of one response."""
    socket.send_json({"type": "response.create", "input": TASK} | body)
    return rest(socket)


def rest(socket: WebSocketTestSession) -> list[Any]:
    told = [socket.receive_json()]
    while told[-1]["type"] not in ("response.completed", "error"):
        told.append(socket.receive_json())
    return told


def test_the_events_are_those_of_the_stream(guided: TestClient) -> None:
    streamed = guided.post("/v1/responses", json={"input": TASK, "stream": True}).text
    over_http = [json.loads(line.removeprefix("data: ")) for line in streamed.splitlines() if line.startswith("data: ")]
    with connected(guided) as socket:
        told = events(socket)
    assert [event["type"] for event in told] == [event["type"] for event in over_http]
    assert [event["sequence_number"] for event in told] == [*range(len(told))]
    [item] = told[-1]["response"]["output"]
    assert item["content"][0]["text"] == DEFAULT_REPLIES[2]
    assert told[-1]["response"]["qguide"]["q_values"] == [0.5, 0.25, 0.75, 0.5, 0.25]


def test_headers_of_the_handshake_are_those_of_each_request(guided: TestClient) -> None:
    with connected(guided, **{"X-QGuide-Num-Candidates": "2", "X-Session-ID": "one"}) as socket:
        for task in (TASK, "find the cup"):
            answer = events(socket, input=task)[-1]["response"]
            assert answer["qguide"]["num_candidates"] == 2
    outcome = guided.post("/v1/episodes/one/outcome", json={"reward": 1.0}).json()
    assert outcome["steps"] == 2


@pytest.mark.parametrize("path", ["/responses", "/v1/v1/responses", "/episodes/e/v1/responses"])
def test_every_path_of_the_route_is_a_websocket(guided: TestClient, path: str) -> None:
    with connected(guided, path) as socket:
        assert events(socket)[-1]["type"] == "response.completed"


def test_a_response_that_is_not_stored_is_continued_while_its_connection_is_open(
    guided: TestClient, upstream: FakeUpstream
) -> None:
    with connected(guided) as socket:
        first = events(socket, store=False, qguide={"num_candidates": 2})[-1]["response"]
        assert first["store"] is False
        assert guided.get(f"/v1/responses/{first['id']}").status_code == 404
        for previous, text in ((first["id"], DEFAULT_REPLIES[0]), (f"{first['id']}.1", DEFAULT_REPLIES[1])):
            told = events(socket, input="You see it.", store=False, previous_response_id=previous)
            assert told[-1]["response"]["previous_response_id"] == previous
            said = [turn["content"] for turn in upstream.asked[-1]["messages"]]
            assert said == [TASK, text, "You see it."]
    with connected(guided) as socket:
        [error] = events(socket, previous_response_id=first["id"])
    assert error["status"] == 400
    assert error["error"]["code"] == "previous_response_not_found"


@pytest.mark.parametrize("fault", ["", "500"])
def test_a_response_that_is_not_stored_is_forgotten_where_going_on_has_failed(
    guided: TestClient, upstream: FakeUpstream, fault: Any
) -> None:
    """As OpenAI does, so that no client goes on from a state that it takes for another."""
    result = {"type": "function_call_output", "output": "x"}
    with connected(guided) as socket:
        previous = events(socket, store=False)[-1]["response"]["id"]
        upstream.fault = fault
        told = events(socket, input="Go." if fault else [result], store=False, previous_response_id=previous)
        assert told[-1]["type"] in ("error", "response.failed")
        upstream.fault = ""
        [error] = events(socket, input="Go.", previous_response_id=previous)
    assert error["error"]["code"] == "previous_response_not_found"


def test_a_connection_keeps_a_name_for_each_response_and_none_for_items(guided: TestClient) -> None:
    items = [{"type": "message", "id": f"msg_{i}", "role": "user", "content": "x"} for i in "123"]
    shelf = guided.app.state.stored.unstored._own  # type: ignore[attr-defined]
    with connected(guided) as socket:
        for _ in range(2):
            assert events(socket, input=items, store=False, generate=False)[-1]["response"]
        assert [len(rows) for rows in shelf.values()] == [2]
        [error] = events(socket, input=[{"type": "item_reference", "id": "msg_1"}])
        assert "'msg_1' was not stored" in error["error"]["message"]
    assert [len(rows) for rows in shelf.values()] == [0]


def test_it_is_continued_where_nothing_is_stored_at_all(serve: Serve, address: tuple[FakeUpstream, str]) -> None:
    client = serve(settings_of(address[1], responses_ttl_s=0))
    with connected(client) as socket:
        first = events(socket)[-1]["response"]
        assert first["store"] is False
        told = events(socket, previous_response_id=first["id"])
    assert told[-1]["type"] == "response.completed"


def test_a_stored_response_outlives_its_connection(guided: TestClient) -> None:
    with connected(guided) as socket:
        first = events(socket)[-1]["response"]
    assert guided.get(f"/v1/responses/{first['id']}").json()["status"] == "completed"


def test_a_warm_up_draws_nothing_and_is_continued(guided: TestClient, upstream: FakeUpstream) -> None:
    with connected(guided) as socket:
        inputs: tuple[Any, ...] = (TASK, [])
        for given in inputs:
            told = events(socket, input=given, generate=False, store=False, temperature=0)
            assert [event["type"] for event in told] == [
                *("response.created", "response.in_progress", "response.completed")
            ]
            warm = told[-1]["response"]
            assert (warm["output"], warm["usage"]["total_tokens"]) == ([], 0)
            assert warm["temperature"] == 0
            assert upstream.asked == []
            events(socket, input="Go.", previous_response_id=warm["id"])
            said = [turn["content"] for turn in upstream.asked.pop()["messages"]]
            assert said == [*([given] if given else []), "Go."]


def test_an_event_in_any_script_may_be_as_long_as_a_body(serve: Serve, address: tuple[FakeUpstream, str]) -> None:
    client = serve(settings_of(address[1], max_body_bytes=4_096))
    with connected(client) as socket:
        assert events(socket, input="я" * 1_900)[-1]["type"] == "response.completed"


def test_an_error_is_an_event_and_the_connection_goes_on(guided: TestClient) -> None:
    with connected(guided) as socket:
        [error] = events(socket, temperature=9)
        assert (error["status"], error["error"]["param"]) == (400, "temperature")
        assert error["headers"]["x-request-id"] == error["error"]["request_id"]
        for sent, said in (
            ("{", "not JSON"),
            ("[]", "type is 'None'"),
            ('{"type": "response.steer"}', "type is 'response.steer'"),
        ):
            socket.send_text(sent)
            error = socket.receive_json()
            assert (error["type"], error["status"]) == ("error", 400)
            assert said in error["error"]["message"]
        socket.send_json({"type": "response.processed", "response_id": "resp_1"})
        assert events(socket)[-1]["type"] == "response.completed"


def test_events_wait_for_their_turn_and_have_their_lane_again(guided: TestClient) -> None:
    with connected(guided) as socket:
        for lane in "ab":
            sent = {"type": "response.create", "input": TASK, "stream_id": lane}
            socket.send_json(sent)
        for lane in "ab":
            assert {event["stream_id"] for event in rest(socket)} == {lane}


def test_more_than_may_wait_is_refused(serve: Serve, address: tuple[FakeUpstream, str], upstream: FakeUpstream) -> None:
    client = serve(settings_of(address[1], max_body_bytes=4096))
    upstream.delay_s = 0.3
    with connected(client) as socket:
        for _ in range(5):
            socket.send_json({"type": "response.create", "input": "x" * 1000})
        kinds = [socket.receive_json()["type"]]
        while kinds.count("error") + kinds.count("response.completed") < 5:
            kinds.append(socket.receive_json()["type"])
    assert kinds.count("response.completed") >= 2
    assert kinds.count("error") >= 1


def test_a_handshake_is_refused_as_its_request_would_be(
    serve: Serve, address: tuple[FakeUpstream, str], tmp_path: Path
) -> None:
    ada = create_key(tmp_path / "keys.json", "ada")
    client = serve(settings_of(address[1], keys_file=tmp_path / "keys.json", websockets_per_key=2))
    assert refusal(client) == (401, "invalid_api_key")
    key = {"Authorization": f"Bearer {ada}"}
    with connected(client, **key), connected(client, **key):
        assert refusal(client, **key) == (429, "rate_limit_exceeded")
    with connected(client, **key) as socket:
        assert events(socket)[-1]["type"] == "response.completed"
        (tmp_path / "keys.json").write_text('{"keys": []}')
        [error] = events(socket)
        assert (error["status"], error["error"]["code"]) == (401, "invalid_api_key")


def test_pages_of_strangers_open_none(serve: Serve, address: tuple[FakeUpstream, str]) -> None:
    client = serve(settings_of(address[1], cors_origins=("https://good.example",)))
    assert refusal(client, Host="evil.example") == (403, "untrusted_host")
    strangers = ("https://evil.example", "null", "http://127.0.0.1.evil.example", "http://[")
    for origin in strangers:
        assert refusal(client, Origin=origin) == (403, "forbidden")
    for origin in ("https://good.example", "http://127.0.0.1"):
        with connected(client, Origin=origin) as socket:
            assert events(socket)[-1]["type"] == "response.completed"


def test_an_idle_connection_is_closed(serve: Serve, address: tuple[FakeUpstream, str]) -> None:
    client = serve(settings_of(address[1], websocket_idle_s=1.0))
    with connected(client) as socket:
        assert events(socket)[-1]["type"] == "response.completed"
        with pytest.raises(WebSocketDisconnect) as closed:
            socket.receive_json()
    assert (closed.value.code, closed.value.reason) == (1000, "idle")


def test_other_paths_answer_as_ever(guided: TestClient) -> None:
    with pytest.raises(WebSocketDenialResponse) as refused, connected(guided, "/v1/nothing"):
        pass
    assert refused.value.status_code == 404


def test_without_websockets_codex_goes_on_over_http_at_once(serve: Serve, address: tuple[FakeUpstream, str]) -> None:
    client = serve(settings_of(address[1], websockets_per_key=0))
    refused = client.get("/v1/responses", headers={"Upgrade": "websocket", "Connection": "Upgrade"})
    assert (refused.status_code, refused.headers["upgrade"]) == (426, "websocket")
    assert refused.json()["error"]["code"] == "websocket_unsupported"
    assert client.put("/v1/responses").status_code == 405

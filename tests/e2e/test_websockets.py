"""WebSockets of a real server on a real socket: OpenAI's SDK, limits, and ends on either side."""

import gc
import json
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from socket import SO_RCVBUF, SOL_SOCKET, socket
from typing import Any

import httpx
import openai
import pytest
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.frames import Frame, Opcode
from websockets.sync.client import ClientConnection, connect

from qguide.server.app import create_app
from qguide.server.chat.fake_openai import DEFAULT_REPLIES, FakeUpstream
from qguide.server.http.websocket import LimitedWebSocket
from tests.support.serving import serving_app
from tests.unit.server.conftest import FAKES, settings_of

CREATE = json.dumps({"type": "response.create", "input": "find the mug"})


@contextmanager
def serving(**limits: Any) -> Iterator[str]:
    with serving_app(create_app(FAKES.model_copy(update=limits))) as url:
        yield f"{url}/v1"


def opened(url: str) -> ClientConnection:
    return connect(f"{url.replace('http', 'ws')}/responses")


@contextmanager
def handshake(url: str, *more: str) -> Iterator[socket]:
    """A connection that has asked for a WebSocket, with more headers, and has read nothing."""
    at = httpx.URL(url)
    head = (
        *("GET /v1/responses HTTP/1.1", f"Host: {at.host}"),
        *("Connection: Upgrade", "Upgrade: websocket"),
        *("Sec-WebSocket-Version: 13", "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ=="),
    )
    with socket() as raw:
        raw.setsockopt(SOL_SOCKET, SO_RCVBUF, 4_096)
        raw.settimeout(30)
        raw.connect((at.host, at.port))
        raw.sendall("\r\n".join([*head, *more, "", ""]).encode())
        yield raw


def kinds(socket: ClientConnection) -> Iterator[str]:
    """Types of events until the connection is closed."""
    with suppress(ConnectionClosed):
        while True:
            yield json.loads(socket.recv(timeout=30))["type"]


def wait_until(is_so: Callable[[], bool]) -> None:
    until = time.monotonic() + 30
    while not is_so():
        assert time.monotonic() < until
        time.sleep(0.01)


@pytest.mark.filterwarnings("ignore:connect.. must be used")  # as the SDK does
def test_openais_sdk_plays_two_turns_on_one_connection() -> None:
    upstream = FakeUpstream()
    with (
        serving_app(upstream.app()) as behind,
        serving_app(create_app(settings_of(f"{behind}/v1"))) as url,
        openai.OpenAI(base_url=f"{url}/v1", api_key="any", max_retries=0) as client,
        client.responses.connect() as connection,
    ):
        previous: str | openai.Omit = openai.omit
        for said in ("find the mug", "You see a mug."):
            connection.response.create(model="demo", input=said, store=False, previous_response_id=previous)
            while (event := connection.recv()).type != "response.completed":
                assert event.type != "error", event
            previous = event.response.id
    turns = [turn["content"] for turn in upstream.asked[-1]["messages"]]
    assert turns == ["find the mug", DEFAULT_REPLIES[2], "You see a mug."]


def closing_code(socket: ClientConnection) -> int | None:
    with pytest.raises(ConnectionClosed) as closed:
        socket.recv(timeout=30)
    return closed.value.rcvd.code if closed.value.rcvd else None


def test_a_message_is_no_larger_than_a_body() -> None:
    with serving(max_body_bytes=10_000) as url, opened(url) as socket:
        socket.send("x" * 10_001)
        assert closing_code(socket) == 1009


def test_a_message_comes_in_as_many_frames_as_a_body_in_chunks() -> None:
    with serving(max_body_bytes=1_024**2) as url, opened(url) as socket:
        socket.send(["{", *["" for _ in range(1_000)], "}"])
        assert json.loads(socket.recv(timeout=30))["error"]["param"] == "type"
        endless = Frame(Opcode.TEXT, b"{", fin=False).serialize(mask=True)
        endless += 3_000 * Frame(Opcode.CONT, b"", fin=False).serialize(mask=True)
        socket.socket.sendall(endless)
        assert closing_code(socket) == 1009


def test_many_small_frames_take_turns_and_none_is_lost() -> None:
    pings = b"".join(Frame(Opcode.PING, b"").serialize(mask=True) for _ in range(30_000))
    with serving() as url, opened(url) as socket:
        socket.socket.sendall(pings)
        assert httpx.get(f"{url.removesuffix('/v1')}/healthz").status_code == 200
        socket.send(CREATE)
        assert "response.completed" in kinds(socket)


def test_a_websocket_keeps_the_place_of_its_connection() -> None:
    with serving(max_connections_per_address=1) as url:
        with opened(url) as socket:
            assert httpx.get(f"{url}/models").status_code == 503
            socket.send(CREATE)
            assert "response.completed" in kinds(socket)
        wait_until(lambda: httpx.get(f"{url}/models").status_code == 200)


@pytest.mark.parametrize("header", ["Content-Length: 1", f"X-Long: {9_000 * 'x'}"])
def test_what_is_no_handshake_is_refused_and_keeps_no_place(header: str) -> None:
    with serving(max_connections_per_address=1) as url:
        with handshake(url, header) as raw:
            answer = b"".join(iter(lambda: raw.recv(4096), b""))
        assert answer.startswith(b"HTTP/1.1 400 ")
        assert json.loads(answer.partition(b"\r\n\r\n")[2])["error"]["code"] == "malformed_request"
        wait_until(lambda: httpx.get(f"{url}/models").status_code == 200)


def test_a_refused_handshake_is_no_error_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    with serving() as url, pytest.raises(InvalidStatus) as refused:
        connect(f"{url.replace('http', 'ws')}/nothing")
    assert refused.value.response.status_code == 404
    assert not [record for record in caplog.records if record.levelname == "ERROR"]


def test_a_client_that_reads_nothing_is_not_answered_without_end() -> None:
    pings = 2_000 * Frame(Opcode.PING, 125 * b"x").serialize(mask=True)
    event = Frame(Opcode.TEXT, b"{}").serialize(mask=True)
    with serving() as url, handshake(url) as raw:
        assert raw.recv(4096).startswith(b"HTTP/1.1 101 ")
        raw.settimeout(2)
        with pytest.raises(TimeoutError):  # nobody takes them any more
            raw.sendall(100 * (event + pings))
        sockets = [one for one in gc.get_objects() if issubclass(type(one), LimitedWebSocket)]
        assert max(one.transport.get_write_buffer_size() for one in sockets) < 500_000


def test_work_for_a_client_that_has_gone_is_cancelled() -> None:
    upstream = FakeUpstream(delay_s=3)
    with serving_app(upstream.app()) as behind, serving_app(create_app(settings_of(f"{behind}/v1"))) as url:
        with opened(f"{url}/v1") as socket:
            socket.send(CREATE)
            wait_until(lambda: upstream.in_flight > 0)
        wait_until(lambda: 'status="499"' in httpx.get(f"{url}/metrics").text)
        assert upstream.in_flight > 0


def test_a_response_in_the_background_goes_on_though_its_connection_is_closed() -> None:
    upstream = FakeUpstream(delay_s=1)
    with serving_app(upstream.app()) as behind, serving_app(create_app(settings_of(f"{behind}/v1"))) as url:
        with opened(f"{url}/v1") as socket:
            socket.send(json.dumps(json.loads(CREATE) | {"background": True}))
            created, queued = (json.loads(socket.recv(timeout=30)) for _ in range(2))
            assert queued["type"] == "response.queued"
        at = f"{url}/v1/responses/{created['response']['id']}"
        wait_until(lambda: httpx.get(at).json()["status"] not in ("queued", "in_progress"))
        assert httpx.get(at).json()["output"][0]["content"][0]["text"] in DEFAULT_REPLIES


def test_a_server_that_ends_lets_the_response_end_first() -> None:
    upstream = FakeUpstream(delay_s=1)
    with serving_app(upstream.app()) as behind, ExitStack() as ends:
        with serving_app(create_app(settings_of(f"{behind}/v1"))) as url:
            idle, busy = (ends.enter_context(opened(f"{url}/v1")) for _ in range(2))
            busy.send(CREATE)
            wait_until(lambda: upstream.in_flight > 0)
            reading = ends.enter_context(ThreadPoolExecutor(1)).submit(lambda: [*kinds(busy)])
        assert "response.completed" in reading.result()
        assert [closing_code(busy), closing_code(idle)] == [1012, 1012]

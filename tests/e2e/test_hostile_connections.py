"""Hostile connections do not harm others: endless heads, silence, slow bodies, too many at once.

The server is a real one on a real socket. Nothing here waits for a speed: each test ends when the
server has answered or hung up, and the only clocks are the server's own limits.
"""

import json
import select
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import httpx
import pytest

from server.app import create_app
from tests.support.serving import serving_app
from tests.unit.server.conftest import FAKES

PATIENCE_S = 30.0
"""Longest wait for the server to answer or hang up; its own limits in these tests are shorter."""
HEALTH = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n"
SCORE = b"POST /v1/score HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
SLOW = SCORE + b"Content-Length: 100\r\n\r\n{"
MEBIBYTE = 1024 * 1024


@contextmanager
def serving(**limits: Any) -> Iterator[str]:
    """A server of fakes with these limits."""
    with serving_app(create_app(FAKES.model_copy(update=limits))) as url:
        yield url


def connect(url: str) -> socket.socket:
    host, port = httpx.URL(url).host, httpx.URL(url).port
    assert port is not None
    return socket.create_connection((host, port), timeout=PATIENCE_S)


def read_to_end(connection: socket.socket) -> bytes:
    """Everything that the server sends until it hangs up; fails if it does not."""
    said = b""
    try:
        while more := connection.recv(65_536):
            said += more
    except ConnectionResetError:  # it hung up while we were still talking
        pass
    return said


def flood(connection: socket.socket, piece: bytes, *, most: int) -> int:
    """Send until the server hangs up or `most` bytes are sent; return the number sent."""
    sent = 0
    try:
        while sent < most:
            connection.sendall(piece)
            sent += len(piece)
    except (BrokenPipeError, ConnectionResetError):
        pass
    return sent


def error_of(said: bytes) -> tuple[int, str]:
    """Status and code of an error in QGuide's format."""
    head, _, body = said.partition(b"\r\n\r\n")
    error = json.loads(body)["error"]
    assert set(error) == {"code", "message", "request_id"}
    return int(head.split()[1]), error["code"]


def test_an_endless_header_is_431() -> None:
    with serving() as url, connect(url) as connection:
        connection.sendall(HEALTH + b"X-Endless: ")
        sent = flood(connection, b"a" * 4096, most=32 * MEBIBYTE)
        assert sent < 32 * MEBIBYTE  # else all of it was read
    with serving() as url, connect(url) as connection:
        connection.sendall(HEALTH + b"X-Endless: " + b"a" * 100_000)
        assert error_of(read_to_end(connection)) == (431, "head_too_large")


def test_an_endless_address_is_431() -> None:
    with serving() as url, connect(url) as connection:
        connection.sendall(b"GET /" + b"a" * 100_000)
        assert error_of(read_to_end(connection)) == (431, "head_too_large")


def test_too_many_headers_are_431() -> None:
    with serving() as url, connect(url) as connection:
        connection.sendall(HEALTH + b"A: b\r\n" * 1000 + b"\r\n")
        assert error_of(read_to_end(connection)) == (431, "head_too_large")


def test_headers_after_a_chunked_body_count_as_well() -> None:
    with serving() as url, connect(url) as connection:
        connection.sendall(SCORE + b"Transfer-Encoding: chunked\r\n\r\n1\r\n{\r\n0\r\n")
        connection.sendall(b"A: b\r\n" * 1000 + b"\r\n")
        assert error_of(read_to_end(connection)) == (431, "head_too_large")
    with serving() as url, connect(url) as connection:
        connection.sendall(SCORE + b"Transfer-Encoding: chunked\r\n\r\n1\r\n{\r\n0\r\nA: ")
        assert flood(connection, b"a" * 4096, most=32 * MEBIBYTE) < 32 * MEBIBYTE


def test_a_head_within_the_limits_is_served() -> None:
    with serving() as url:
        many = {f"X-Header-{number}": "a" * 200 for number in range(80)}
        assert httpx.get(f"{url}/healthz", headers=many).status_code == 200


@pytest.mark.parametrize("said", [b"", b"\r\n\r\n"], ids=["silence", "empty lines"])
def test_who_says_nothing_is_hung_up_on(said: bytes) -> None:
    with serving(head_timeout_s=0.2) as url, connect(url) as connection:
        connection.sendall(said)
        assert read_to_end(connection) == b""


def test_a_head_that_does_not_end_is_408() -> None:
    with serving(head_timeout_s=0.2) as url, connect(url) as connection:
        connection.sendall(HEALTH)
        assert error_of(read_to_end(connection)) == (408, "request_timeout")


def test_a_second_head_that_does_not_end_is_408() -> None:
    with serving(head_timeout_s=1.0) as url, connect(url) as connection:
        connection.sendall(HEALTH + b"\r\n" + HEALTH)
        said = read_to_end(connection)
        assert said.startswith(b"HTTP/1.1 200")
        assert error_of(said[said.rindex(b"HTTP/1.1") :]) == (408, "request_timeout")


def test_a_body_that_does_not_end_is_408() -> None:
    with serving(body_timeout_s=0.2) as url, connect(url) as connection:
        connection.sendall(SLOW)
        assert error_of(read_to_end(connection)) == (408, "request_timeout")


def test_a_body_that_nobody_reads_is_not_waited_for() -> None:
    with serving(head_timeout_s=1.0) as url, connect(url) as connection:
        connection.sendall(SLOW.replace(b"localhost", b"evil.example"))
        said = read_to_end(connection)
        assert said.startswith(b"HTTP/1.1 403")
        assert said.count(b"HTTP/1.1") == 1


def test_an_idle_connection_is_closed() -> None:
    with serving(keep_alive_s=1.0) as url, connect(url) as connection:
        connection.sendall(HEALTH + b"\r\n")
        assert read_to_end(connection).startswith(b"HTTP/1.1 200")


def test_silent_connections_make_room_for_others() -> None:
    with serving(max_connections_per_address=8, head_timeout_s=600.0) as url, ExitStack() as stack:
        silent = [stack.enter_context(connect(url)) for _ in range(8)]
        assert httpx.get(f"{url}/healthz", timeout=PATIENCE_S).status_code == 200
        assert read_to_end(silent[0]) == b""  # the one that had been silent for longest


def test_all_connections_together_have_a_limit() -> None:
    with serving(max_connections=8, head_timeout_s=600.0) as url, ExitStack() as stack:
        silent = [stack.enter_context(connect(url)) for _ in range(8)]
        assert httpx.get(f"{url}/healthz", timeout=PATIENCE_S).status_code == 200
        assert read_to_end(silent[0]) == b""


def test_slow_bodies_take_nobodys_turn() -> None:
    with serving(concurrent_requests=4, body_timeout_s=600.0) as url, ExitStack() as stack:
        for _ in range(16):
            stack.enter_context(connect(url)).sendall(SLOW)
        body = {"messages": [{"role": "user", "content": "look"}], "candidates": ["go"]}
        answers = [httpx.post(f"{url}/v1/score", json=body, timeout=PATIENCE_S) for _ in range(8)]
        assert [answer.status_code for answer in answers] == [200] * 8


def test_bodies_that_are_still_coming_have_a_limit_together() -> None:
    most = 1024
    almost = SCORE + f"Content-Length: {most}\r\n\r\n".encode() + b" " * (most - 1)
    with serving(max_body_bytes=most, body_timeout_s=600.0) as url, ExitStack() as stack:
        slow = [stack.enter_context(connect(url)) for _ in range(66)]
        for connection in slow:
            connection.sendall(almost)
        answered, _, _ = select.select(slow, [], [], PATIENCE_S)
        assert answered
        assert error_of(read_to_end(answered[0])) == (503, "overloaded")


def test_what_is_no_http_is_explained_in_our_shape() -> None:
    with serving() as url, connect(url) as connection:
        connection.sendall(b"\x16\x03\x01 nonsense\r\n\r\n")
        assert error_of(read_to_end(connection)) == (400, "malformed_request")


def test_pipelined_requests_have_a_limit() -> None:
    with serving() as url, connect(url) as connection:
        connection.sendall((HEALTH + b"\r\n") * 1000)
        assert read_to_end(connection).count(b"HTTP/1.1 200") < 1000

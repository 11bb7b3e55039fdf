"""Hostile connections do not harm others: endless heads, silence, slow bodies, too many at once.

The server is a real one on a real socket. Nothing here waits for a speed: each test ends when the
server has answered or hung up, and the only clocks are the server's own limits.
"""

import json
import select
import socket
import struct
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from logging import ERROR
from pathlib import Path
from typing import Any

import httpx
import pytest

from qguide.server.app import create_app
from qguide.server.http.keys import create_key
from qguide.server.http.protocol import LimitedHttpProtocol
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


CHUNKED = SCORE + b"Transfer-Encoding: chunked\r\n\r\n"
ONE_BYTE = b"1\r\na\r\n"


@contextmanager
def counting(monkeypatch: pytest.MonkeyPatch) -> Iterator[Counter[str]]:
    """Counts pieces of bodies, the most of them without a pause, and times that data was parsed."""
    counts = Counter[str]()
    on_body, parse = LimitedHttpProtocol.on_body, LimitedHttpProtocol._parse
    at_once = 0

    def counted_piece(self: LimitedHttpProtocol, body: bytes) -> None:
        nonlocal at_once
        at_once += 1
        counts["pieces"] += 1
        counts["at once"] = max(counts["at once"], at_once)
        on_body(self, body)

    def counted_parse(self: LimitedHttpProtocol, data: bytes) -> None:
        nonlocal at_once
        at_once = 0
        counts["pauses"] += 1
        parse(self, data)

    with monkeypatch.context() as patched:
        patched.setattr(LimitedHttpProtocol, "on_body", counted_piece)
        patched.setattr(LimitedHttpProtocol, "_parse", counted_parse)
        yield counts


@pytest.fixture
def keys_file(tmp_path: Path) -> Path:
    create_key(tmp_path / "keys.json", "somebody")
    return tmp_path / "keys.json"


def test_a_body_without_a_key_is_not_parsed_once_it_is_refused(
    keys_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with counting(monkeypatch) as counts, serving(keys_file=keys_file) as url, connect(url) as connection:
        connection.sendall(CHUNKED)
        sent = flood(connection, ONE_BYTE * 1_000, most=32 * MEBIBYTE)
    assert sent < 32 * MEBIBYTE
    assert counts["pieces"] < 10_000


def test_a_refused_body_in_chunks_gets_its_answer_and_the_end_of_the_connection(keys_file: Path) -> None:
    with serving(keys_file=keys_file) as url, connect(url) as connection:
        connection.sendall(CHUNKED + ONE_BYTE * 10_000)
        assert error_of(read_to_end(connection)) == (401, "unauthorized")


def test_an_answer_before_the_end_of_a_body_in_chunks_says_that_the_connection_ends(keys_file: Path) -> None:
    with serving(keys_file=keys_file) as url, connect(url) as connection:
        connection.sendall(CHUNKED + ONE_BYTE)
        head = read_to_end(connection).partition(b"\r\n\r\n")[0]
        assert b"\r\nconnection: close" in head.lower()


def test_who_was_refused_in_the_middle_of_a_body_is_served_on_the_next_connection(keys_file: Path) -> None:
    def body() -> Iterator[bytes]:
        yield b'{"messages": []'
        yield b"}"

    with serving(keys_file=keys_file) as url, httpx.Client(base_url=url) as http:
        for _ in range(5):
            answer = http.post("/v1/score", content=body(), timeout=PATIENCE_S)
            assert answer.status_code == 401
        assert http.get("/healthz").status_code == 200


def test_a_body_in_very_many_chunks_is_400() -> None:
    with serving() as url, connect(url) as connection:
        connection.sendall(CHUNKED)
        assert flood(connection, ONE_BYTE * 1_000, most=32 * MEBIBYTE) < 32 * MEBIBYTE
    with serving() as url, connect(url) as connection:
        connection.sendall(CHUNKED + ONE_BYTE * 33_000)
        assert error_of(read_to_end(connection)) == (400, "too_many_chunks")


def test_many_small_chunks_are_parsed_with_pauses_and_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = {"messages": [{"role": "user", "content": "look " * 4_000}], "candidates": ["go"]}
    body = b"".join(ONE_BYTE.replace(b"a", bytes([byte])) for byte in json.dumps(asked).encode())
    with counting(monkeypatch) as counts, serving() as url, connect(url) as connection:
        connection.sendall(CHUNKED + body + b"0\r\n\r\n" + HEALTH + b"Connection: close\r\n\r\n")
        answers = read_to_end(connection)
    assert answers.count(b"HTTP/1.1 200") == 2
    assert counts["pieces"] > 20_000
    assert counts["at once"] <= 2_000
    assert counts["pauses"] >= 10


@pytest.mark.parametrize(
    "said",
    [
        CHUNKED + b"no size\r\n",
        CHUNKED + ONE_BYTE * 40_000,
        CHUNKED + b"1\r\na\r\n0\r\n" + b"A: b\r\n" * 1_000,
        (HEALTH + b"\r\n") * 3 + b"\x16\x03\x01 nonsense" * 10_000,
        (HEALTH + b"\r\n") * 1_000,
        SLOW.replace(b"100", b"1") + b"}" * 100_000,
        b"\x16\x03\x01 nonsense\r\n" * 10_000,
        HEALTH + b"\r\n" + HEALTH + b"X: " + b"a" * 100_000,
    ],
    ids=range(8),
)
@pytest.mark.parametrize("reads", [True, False], ids=["reads", "hangs up"])
def test_refused_connections_are_no_errors_of_the_server(
    keys_file: Path, said: bytes, reads: bool, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    with serving(keys_file=keys_file, head_timeout_s=0.3) as url:
        for pause in (0, len(said) // 2, len(HEALTH)):
            with connect(url) as connection:
                with suppress(ConnectionResetError, BrokenPipeError):
                    connection.sendall(said[:pause])
                    connection.sendall(said[pause:])
                if reads:
                    read_to_end(connection)
                else:  # with unread data, so that the server's writes fail
                    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        assert httpx.get(f"{url}/healthz", timeout=PATIENCE_S).status_code == 200
    assert [record.getMessage() for record in caplog.records if record.levelno >= ERROR] == []
    assert "request_failed" not in capsys.readouterr().out

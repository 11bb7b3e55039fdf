"""Binding the server's address before anything else is done."""

import socket

import pytest

from qguide.qnet.errors import ConfigError
from qguide.server.http.server import bind, close, port_of


def test_a_bound_port_is_kept_and_lets_nobody_in_before_a_server_listens() -> None:
    bound = bind("127.0.0.1", 0)
    try:
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", port_of(bound)), timeout=5)
        bound[0].listen()
        socket.create_connection(("127.0.0.1", port_of(bound)), timeout=5).close()
    finally:
        close(bound)


def test_a_port_in_use_is_refused_with_the_remedy() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with pytest.raises(ConfigError, match=f"^port {port} .* --port"):
            bind("127.0.0.1", port)


@pytest.mark.parametrize(
    ("host", "said"), [("no such host", "'no such host' .* --host"), ("192.0.2.1", r"^192\.0\.2\.1 .* --host")]
)
def test_an_address_that_is_not_here_is_refused(host: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        bind(host, 0)

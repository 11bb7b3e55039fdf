"""uvicorn configuration with connection limits."""

import errno
import resource
import socket
from collections.abc import Sequence

import structlog
import uvicorn
from fastapi import FastAPI

from qguide.qnet.errors import ConfigError
from qguide.server.connections.limits import ConnectionTable, limits_of
from qguide.server.connections.parsing_turns import ParsingTurns
from qguide.server.connections.protocol import LimitedHttpProtocol
from qguide.server.settings.settings import Settings


def bind(host: str, port: int) -> list[socket.socket]:
    """Bind every address of a host; nobody can connect until a server listens on them."""
    try:
        found = socket.getaddrinfo(
            host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
    except socket.gaierror as error:
        raise ConfigError(
            f"host {host!r} has no address ({error.strerror}); choose another with --host"
        ) from error
    bound: list[socket.socket] = []
    try:
        for family, kind, protocol, _, address in dict.fromkeys(found):
            try:
                bound.append(socket.socket(family, kind, protocol))
            except OSError:  # an address of IPv6 where the machine has none
                continue
            if family == socket.AF_INET6:
                bound[-1].setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            # A server that was just stopped leaves connections that keep the port for a minute.
            bound[-1].setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            bound[-1].bind(address)
    except OSError as error:
        close(bound)
        raise ConfigError(_reason(host, port, error)) from error
    if not bound:
        raise ConfigError(f"host {host!r} has no address here; choose another with --host")
    return bound


def port_of(bound: Sequence[socket.socket]) -> int:
    """The port of the first of these sockets."""
    port: int = bound[0].getsockname()[1]
    return port


def close(sockets: Sequence[socket.socket]) -> None:
    """Give the address free again."""
    for each in sockets:
        each.close()


def _reason(host: str, port: int, error: OSError) -> str:
    match error.errno:
        case errno.EADDRINUSE:
            return f"port {port} is in use; choose another with --port"
        case errno.EACCES:
            return f"port {port} is not allowed to this user; choose one above 1023 with --port"
        case errno.EADDRNOTAVAIL:
            return f"{host} is no address of this machine; choose another with --host"
        case _:
            said = error.strerror or str(error)
            return f"{host}:{port} cannot be bound ({said}); choose another with --host or --port"


_RESERVED_DESCRIPTORS = 256
"""File descriptors reserved for models, logs, episodes, Redis and upstreams."""

_log = structlog.get_logger(__name__)


def server_config(app: FastAPI, settings: Settings, *, port: int | None = None) -> uvicorn.Config:
    """Build the uvicorn configuration for an application."""

    def count_closed(reason: str) -> None:
        app.state.metrics.connections_closed.labels(reason).inc()

    table = ConnectionTable(limits_of(settings), count_closed)
    shared = {"table": table, "turns": ParsingTurns()}
    protocol = type("ServedHttpProtocol", (LimitedHttpProtocol,), shared)
    return uvicorn.Config(
        app,
        host=settings.host,
        port=settings.port if port is None else port,
        http=protocol,
        # No route uses websockets, and an upgraded connection would escape the connection table.
        ws="none",
        lifespan="on",
        access_log=False,
        log_config=None,
        timeout_graceful_shutdown=settings.shutdown_timeout_s,
    )


def raise_descriptor_limit(max_connections: int) -> None:
    """Raise this process's descriptor limit for that many connections, or log a warning."""
    wanted = max_connections + _RESERVED_DESCRIPTORS
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return
    allowed = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))
    if allowed < wanted:
        _log.warning(
            "few_descriptors",
            allowed=allowed,
            wanted=wanted,
            remedy="raise `ulimit -n` or lower QGUIDE_MAX_CONNECTIONS",
        )

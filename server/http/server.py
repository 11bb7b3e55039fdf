"""The uvicorn server: its addresses, its configuration with limits, and its graceful shutdown."""

import errno
import faulthandler
import resource
import signal
import socket
from collections.abc import Sequence
from time import monotonic
from types import FrameType
from typing import Final

import structlog
import uvicorn
from fastapi import FastAPI

from qguide.qnet.errors import ConfigError
from qguide.server.http.connection_limits import ConnectionTable, ParsingTurns
from qguide.server.http.middleware import Drain
from qguide.server.http.protocol import LimitedHttpProtocol
from qguide.server.http.websocket import LimitedWebSocket
from qguide.server.settings.settings import Settings

_RESERVED_DESCRIPTORS = 256  # file descriptors reserved for models, logs, episodes, Redis and upstreams
_log = structlog.get_logger(__name__)
_REFUSAL_S: Final = 0.5  # time before the server stops listening in which clients on open connections are told to go
_CLOSING_S: Final = 5.0  # time after the last limit in which models and connections are closed


def bind(host: str, port: int) -> list[socket.socket]:
    """Bind every address of a host; nobody can connect until a server listens on them."""
    try:
        found = socket.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except socket.gaierror as error:
        raise ConfigError(f"host {host!r} has no address ({error.strerror}); choose another with --host") from error
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


def server_config(app: FastAPI, settings: Settings, *, port: int | None = None) -> uvicorn.Config:
    """Build the uvicorn configuration for an application."""

    def count_closed(reason: str) -> None:
        app.state.metrics.connections_closed.labels(reason).inc()

    table = ConnectionTable(settings, count_closed)
    shared = {"table": table, "turns": ParsingTurns()}
    protocol = type("ServedHttpProtocol", (LimitedHttpProtocol,), shared)
    socket_protocol = type("ServedWebSocket", (LimitedWebSocket,), shared)
    return uvicorn.Config(
        app,
        host=settings.host,
        port=settings.port if port is None else port,
        http=protocol,
        ws=socket_protocol if settings.websockets_per_key else "none",
        ws_max_size=settings.max_body_bytes,
        ws_per_message_deflate=False,  # it would take the event loop's time
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


class DrainingServer(uvicorn.Server):
    """uvicorn server that goes on serving for a while after SIGTERM, and then ends in any case.

    Load balancers then see the failing readiness check before requests are refused. A second SIGTERM, or SIGINT at any
    time, skips the delay. Requests in flight are waited for in either case, up to `timeout_graceful_shutdown` of the
    configuration.
    """

    def __init__(self, config: uvicorn.Config, drain: Drain, *, delay_s: float, ends_hard: bool = False) -> None:
        super().__init__(config)
        self._drain = drain
        self._delay_s = delay_s  # time from the signal until new requests are refused
        # end the process if it is still there some seconds after all limits have passed, because a thread or the event
        # loop is stuck. Only for a process that is nothing but this server.
        self._ends_hard = ends_hard
        self._leave_at: float | None = None

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Begin to drain; at the second signal, shut down at once."""
        first = not self._drain.draining
        self._drain.draining = True
        if self._ends_hard:
            delay_s = self._delay_s + _REFUSAL_S if first else 0.0
            grace_s = self.config.timeout_graceful_shutdown or 0
            # On a thread outside Python, which needs neither the event loop nor the GIL. It writes what every thread
            # was doing to stderr: files, lines and functions, no values.
            faulthandler.dump_traceback_later(delay_s + grace_s + _CLOSING_S, exit=True)
        if sig == signal.SIGTERM and first and self._delay_s:
            self._leave_at = monotonic() + self._delay_s
            self._captured_signals.append(sig)
        else:
            self._drain.refusing = True
            super().handle_exit(sig, frame)

    async def on_tick(self, counter: int) -> bool:
        """True if the server should stop listening; uvicorn asks ten times per second."""
        is_due = self._leave_at is not None and monotonic() >= self._leave_at
        if is_due and not self._drain.refusing:
            self._drain.refusing = True
            self._leave_at = monotonic() + _REFUSAL_S
            is_due = False
        return await super().on_tick(counter) or is_due

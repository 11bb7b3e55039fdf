"""uvicorn configuration with connection limits."""

import resource

import structlog
import uvicorn
from fastapi import FastAPI

from qguide.server.connections.limits import ConnectionTable, limits_of
from qguide.server.connections.parsing_turns import ParsingTurns
from qguide.server.connections.protocol import LimitedHttpProtocol
from qguide.server.settings.settings import Settings

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

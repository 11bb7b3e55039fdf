"""A real Redis for tests, which can be killed, frozen and started again on the same port."""

import os
import shutil
import signal
import socket
from pathlib import Path

import pytest

from qguide.server.upstreams.managed_process import ManagedProcess

BINARY = shutil.which("redis-server") or shutil.which(os.environ.get("QGUIDE_REDIS_SERVER", "")) or ""
START_S = 60.0


class RedisServer:
    """One process without persistence on a port of its own."""

    def __init__(self, folder: Path) -> None:
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port: int = free.getsockname()[1]
        self.url = f"redis://127.0.0.1:{self.port}/0"
        self._folder = folder
        self._process: ManagedProcess | None = None

    def start(self) -> None:
        """Start and wait until it answers."""
        command = [BINARY, "--port", str(self.port), "--bind", "127.0.0.1", "--save", ""]
        command += ["--appendonly", "no", "--dir", str(self._folder)]
        log = self._folder / "redis.log"
        self._process = ManagedProcess("Redis", command, environment=os.environ, output=log)
        self._process.wait_until(self._answers, timeout_s=START_S)

    def kill(self) -> None:
        """End it at once, as a power cut would."""
        if self._process is not None:
            self._process.signal(signal.SIGKILL)
            self._process.close()
            self._process = None

    def freeze(self) -> None:
        """Let it hang: connections stay, answers do not come."""
        assert self._process is not None
        self._process.signal(signal.SIGSTOP)

    def thaw(self) -> None:
        """Let it go on."""
        assert self._process is not None
        self._process.signal(signal.SIGCONT)

    def _answers(self) -> bool:
        try:
            with socket.create_connection(("127.0.0.1", self.port), timeout=1) as connection:
                connection.sendall(b"PING\r\n")
                return connection.recv(7) == b"+PONG\r\n"
        except OSError:
            return False


def require_redis() -> None:
    """Skip where there is no redis-server."""
    if not BINARY:
        pytest.skip(
            "no redis-server on PATH; install it (Debian: apt-get install redis-server) or name "
            "it in QGUIDE_REDIS_SERVER"
        )

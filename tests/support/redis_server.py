"""A real Redis for tests, which can be killed, frozen and started again on the same port."""

import os
import shutil
import signal
import socket
import subprocess
import time
from pathlib import Path

import pytest

BINARY = (
    shutil.which("redis-server") or shutil.which(os.environ.get("QGUIDE_REDIS_SERVER", "")) or ""
)
START_S = 60.0


class RedisServer:
    """One process without persistence on a port of its own."""

    def __init__(self, folder: Path) -> None:
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port: int = free.getsockname()[1]
        self.url = f"redis://127.0.0.1:{self.port}/0"
        self._folder = folder
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start and wait until it answers."""
        command = [BINARY, "--port", str(self.port), "--bind", "127.0.0.1", "--save", ""]
        command += ["--appendonly", "no", "--dir", str(self._folder)]
        self._process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        deadline = time.monotonic() + START_S
        while not self._answers():
            assert time.monotonic() < deadline, "redis-server did not start"
            time.sleep(0.05)

    def kill(self) -> None:
        """End it at once, as a power cut would."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def freeze(self) -> None:
        """Let it hang: connections stay, answers do not come."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        """Let it go on."""
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)

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

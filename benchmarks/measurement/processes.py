"""Child processes of benchmarks."""

import os
import socket
from collections.abc import Mapping, Sequence
from pathlib import Path

import httpx
import psutil

from qguide.qnet.errors import ConfigError
from qguide.server.upstreams.managed_process import ManagedProcess

START_S = 1800.0
"""Generous, because a large model may start on a busy machine."""
ANSWER_S = 1800.0


def child(name: str, command: Sequence[str], *, log: Path, environment: Mapping[str, str]) -> ManagedProcess:
    """Start a process, to be used in a `with` block that ends it.

    Args:
        log: file for its output; reading the output here would disturb the measurement.
        environment: variables added to this process's environment.

    Raises:
        ConfigError: it cannot be started.
    """
    whole = {**os.environ, **environment}
    try:
        return ManagedProcess(name, command, environment=whole, output=log)
    except OSError as error:
        raise ConfigError(f"{name} cannot be started: {error.strerror}") from error


def family(process: ManagedProcess) -> list[int]:
    """Process ids of a started process and all running descendants."""
    try:
        children = psutil.Process(process.pid).children(recursive=True)
    except psutil.NoSuchProcess:
        return []
    return [process.pid, *(child.pid for child in children)]


def wait_until_ready(process: ManagedProcess, http: httpx.Client, path: str) -> None:
    """Poll a started server until it is ready.

    Raises:
        ConfigError: it exited, or takes too long.
    """

    def answers() -> bool:
        try:
            return http.get(path).status_code == 200
        except httpx.TransportError:
            return False

    process.wait_until(answers, timeout_s=START_S)


def free_port() -> int:
    """A port that is free now."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port: int = free.getsockname()[1]
        return port

"""`qguide serve` as a process of its own, on a free port."""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

ROOT = Path(__file__).parents[1]
END_S = 60


@contextmanager
def serving(*options: str, env: Mapping[str, str], log: Path, start_s: float) -> Iterator[str]:
    """Its root URL once it is ready; it is ended by SIGTERM and has to end."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "qguide", "serve", "--port", str(port), *options]
    given = {**os.environ, "OMP_NUM_THREADS": "1", **env}
    with (
        log.open("wb") as stderr,
        subprocess.Popen(command, cwd=ROOT, env=given, stderr=stderr) as process,
    ):
        try:
            url = f"http://127.0.0.1:{port}"
            _wait_until_ready(process, url, log, start_s)
            yield url
        finally:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(END_S)
            finally:
                process.kill()


def processes_with(text: str) -> list[int]:
    """Who runs with this in the command line."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if text.encode() in (folder / "cmdline").read_bytes():
                found.append(int(folder.name))
        except OSError:  # ended meanwhile
            continue
    return found


def _wait_until_ready(
    process: "subprocess.Popen[bytes]", url: str, log: Path, start_s: float
) -> None:
    deadline = time.monotonic() + start_s
    while time.monotonic() < deadline:
        if process.poll() is not None:
            pytest.fail(f"the server ended: {log.read_text()[-5000:]}")
        try:
            if httpx.get(f"{url}/readyz").status_code == 200:
                return
        except httpx.TransportError:
            time.sleep(0.5)
    pytest.fail(f"the server was not ready after {start_s} s: {log.read_text()[-5000:]}")

"""Real servers for tests: a process of `qguide serve`, or an application on a port of this one."""

import asyncio
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import httpx
import psutil
import pytest
import uvicorn
from fastapi import FastAPI

from qguide.cli import app as command_line
from qguide.server.http.server import server_config
from tests.support.alone import fresh_process

ROOT = Path(__file__).parents[2]
START_S = 180.0
END_S = 60


class ForkedProcess:
    """A command of `qguide` in a process that has imported torch and the server already.

    It has what these tests use of `subprocess.Popen`. Starting Python for each server would cost
    the suite more than what they serve.
    """

    def __init__(self, arguments: Sequence[str], variables: Mapping[str, str], log: Path, *, cwd: Path = ROOT) -> None:
        self._process = fresh_process(_run_command, list(arguments), dict(variables), log, cwd)
        self._process.start()
        assert self._process.pid is not None
        self.pid = self._process.pid

    def poll(self) -> int | None:
        """Its exit status; None while it runs."""
        return self._process.exitcode

    def wait(self, timeout: float | None = None) -> int:
        """Its exit status, once it has ended."""
        self._process.join(timeout)
        if (status := self.poll()) is None:
            raise TimeoutError(f"process {self.pid} runs on after {timeout} s")
        return status

    def send_signal(self, number: int) -> None:
        """Send it a signal, unless it has ended."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        """End it at once."""
        self.send_signal(signal.SIGKILL)


def _run_command(arguments: list[str], variables: dict[str, str], log: Path, folder: Path) -> None:
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(variables)
    with log.open("wb") as stderr:
        os.dup2(stderr.fileno(), 2)
    run_qguide(arguments)


def run_qguide(arguments: list[str]) -> None:
    """Run a command of `qguide` in this process, which ends with it."""
    sys.argv = ["qguide", *arguments]
    command_line()


@dataclass(frozen=True)
class Serving:
    """A running process, its address and where its stderr goes."""

    process: "subprocess.Popen[bytes] | ForkedProcess"
    url: str
    log: Path


@contextmanager
def serving_process(
    folder: Path, *arguments: str, environment: Mapping[str, str] | None = None, forked: bool = True
) -> Iterator[Serving]:
    """`qguide serve` with the scripted models on a free port, ready.

    Args:
        forked: it need not be a new Python with a command line of its own.
    """
    options = ["--policy", "scripted", "--q-model", "scripted", *arguments]
    log = folder / "stderr.log"
    with _serving(options, environment or {}, log, START_S, forked=forked) as started:
        yield started


@contextmanager
def serving(*options: str, env: Mapping[str, str], log: Path, start_s: float, forked: bool = True) -> Iterator[str]:
    """The root URL of `qguide serve` once it is ready; it is ended by SIGTERM and has to end.

    Args:
        forked: see `serving_process`.
    """
    with _serving(options, env, log, start_s, forked=forked) as started:
        try:
            yield started.url
        finally:
            started.process.send_signal(signal.SIGTERM)
            started.process.wait(END_S)


@contextmanager
def _serving(
    options: Sequence[str], given: Mapping[str, str], log: Path, start_s: float, *, forked: bool
) -> Iterator[Serving]:
    port = free_port()
    arguments = ["serve", "--port", str(port), *options]
    if not forked:
        command = [sys.executable, "-m", "qguide", *arguments]
        with running(command, port, given, log, start_s) as started:
            yield started
        return
    process = ForkedProcess(arguments, _variables(given), log)
    with _ready(process, port, log, start_s) as started:
        yield started


@contextmanager
def running(
    command: Sequence[str], port: int, environment: Mapping[str, str], log: Path, start_s: float
) -> Iterator[Serving]:
    """A command that serves on this port, ready."""
    with (
        log.open("wb") as stderr,
        subprocess.Popen(command, cwd=ROOT, env=_variables(environment), stderr=stderr) as process,
        _ready(process, port, log, start_s) as started,
    ):
        yield started


@contextmanager
def _ready(
    process: "subprocess.Popen[bytes] | ForkedProcess", port: int, log: Path, start_s: float
) -> Iterator[Serving]:
    started = Serving(process, f"http://127.0.0.1:{port}", log)
    try:
        _wait_until_ready(started, start_s)
        yield started
    finally:
        process.kill()
        process.wait()


def _variables(given: Mapping[str, str]) -> dict[str, str]:
    return os.environ | {"OMP_NUM_THREADS": "1"} | dict(given)


class _Server(uvicorn.Server):
    """uvicorn's server, which ends when it is told to: the suite starts hundreds of them.

    uvicorn looks ten times a second whether it should, and waits where no connection is open.
    """

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        self._loop, self._ended = asyncio.get_running_loop(), asyncio.Event()
        await super().startup(sockets)

    async def main_loop(self) -> None:
        await self.on_tick(0)
        await self._ended.wait()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        for listening in self.servers:
            listening.close()
        for connection in list(self.server_state.connections):
            connection.shutdown()
        await asyncio.sleep(0)  # in which those without a request close
        if self.server_state.connections or self.server_state.tasks:
            await super().shutdown(sockets)
        else:
            await self.lifespan.shutdown()

    def end(self) -> None:
        """Stop listening and end, from another thread."""
        self._loop.call_soon_threadsafe(self._ended.set)


@contextmanager
def serving_app(app: FastAPI, *, ws: Literal["none", "websockets-sansio"] = "none") -> Iterator[str]:
    """The address of an application that uvicorn serves on a thread, as it does in a process.

    Clients of a fake that hang are cut off when the block is left, so that no test waits for them.
    """
    settings = getattr(app.state, "settings", None)
    if settings is None:  # not ours: a fake upstream
        config = uvicorn.Config(
            app,
            port=0,
            http="httptools",
            ws=ws,
            log_config=None,
            access_log=False,
            lifespan="on",
            timeout_graceful_shutdown=0,
        )
    else:
        config = server_config(app, settings, port=0)
    server = _Server(config)
    thread = threading.Thread(target=server.run, name="uvicorn")
    thread.start()
    deadline = time.monotonic() + START_S
    while not server.started:
        assert thread.is_alive(), "the server ended at its start"
        assert time.monotonic() < deadline, "the server did not start"
        time.sleep(0.005)
    try:
        port = server.servers[0].sockets[0].getsockname()[1]
        yield f"http://127.0.0.1:{port}"
    finally:
        server.end()
        thread.join()


def free_port() -> int:
    """A port that nobody listens on now."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port: int = free.getsockname()[1]
    return port


def lives(pid: int) -> bool:
    """True while a process runs; one that ended and waits to be collected does not."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def processes_with(text: str) -> list[int]:
    """Ids of the processes with this text in their command line."""
    running = psutil.process_iter(["cmdline"])
    return [process.pid for process in running if text in " ".join(process.info["cmdline"] or ())]


def _wait_until_ready(server: Serving, start_s: float) -> None:
    deadline = time.monotonic() + start_s
    while time.monotonic() < deadline:
        if server.process.poll() is not None:
            pytest.fail(f"the server ended: {server.log.read_text()}")
        try:
            if httpx.get(f"{server.url}/readyz").status_code == 200:
                return
        except httpx.TransportError:
            time.sleep(0.2)
    pytest.fail(f"the server was not ready after {start_s} s: {server.log.read_text()}")

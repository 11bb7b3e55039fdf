"""Limits of a whole test run: what hangs or dies is named, and the run ends.

The limits of one test are in `pyproject.toml`: pytest-timeout fails a test that takes too long, and
faulthandler ends its process where that is of no use. This plugin adds what both leave open where
tests run in several workers: a run in which nothing happens any more, a run that takes too long,
and workers that died. Only the process that controls the run has it.
"""

import contextlib
import os
import sys
import threading
import time
import uuid
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO, Any, Final

import psutil
import pytest

GRACE_S: Final = 60
"""Time of a run beyond the limits of its tests, before it is ended."""

_RUN: Final = "SUITE_RUN"
"""Variable that a run's processes inherit, so that they are found when their parents are gone."""


class Limits:
    """End a run that hangs, and the processes that its workers leave behind.

    Args:
        silence_s: limit for the time in which no test starts or ends.
        whole_s: limit for the whole run; infinite without one.
    """

    def __init__(self, silence_s: float, whole_s: float) -> None:
        self._silence_s = silence_s
        self._ends_at = time.monotonic() + whole_s
        self._whole_s = whole_s
        self._heard_at = time.monotonic()
        self._running: set[str] = set()
        self._workers: list[Any] = []
        self._over = threading.Event()
        self._run = os.environ[_RUN] = f"{os.environ.get(_RUN, '')}/{uuid.uuid4().hex}"

    def pytest_sessionstart(self) -> None:
        """Watch from here on."""
        threading.Thread(target=self._watch, name="limits", daemon=True).start()

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        """Note that a test runs."""
        self._running.add(nodeid)
        self._heard_at = time.monotonic()

    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        """Note that a test has ended."""
        self._running.discard(nodeid)
        self._heard_at = time.monotonic()

    @pytest.hookimpl(optionalhook=True)
    def pytest_handlecrashitem(self, crashitem: str) -> None:
        """Note that a test has ended with its worker."""
        self.pytest_runtest_logfinish(crashitem)

    @pytest.hookimpl(optionalhook=True)
    def pytest_configure_node(self, node: Any) -> None:
        """Note a worker's process."""
        self._workers.append(node.gateway._io.popen)

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_make_scheduler(self, config: pytest.Config, log: Any) -> object:
        """Give `--dist loadfile` a scheduler that survives a dead worker."""
        if config.getvalue("dist") != "loadfile":
            return None
        from tests.support.file_scheduling import FileScheduling

        return FileScheduling(config, log)

    def pytest_enter_pdb(self) -> None:
        """Let a person take the time that they need."""
        self._over.set()

    @pytest.hookimpl(trylast=True)
    def pytest_unconfigure(self) -> None:
        """End the processes that tests left behind; they may hold the output open."""
        self._over.set()
        _end(_processes_of(self._run))

    def _watch(self) -> None:
        while not self._over.wait(min(5.0, self._silence_s / 4)):
            for worker in [worker for worker in self._workers if worker.poll() is not None]:
                self._workers.remove(worker)
                _end(_holders_of(worker.stdout))
            now = time.monotonic()
            if now - self._heard_at > self._silence_s:
                self._fail(f"no test has started or ended for {self._silence_s:g} s")
            if now > self._ends_at:
                self._fail(f"the whole run takes longer than {self._whole_s:g} s")

    def _fail(self, reason: str) -> None:
        running = "".join(f"\n  {nodeid}" for nodeid in sorted(self._running)) or " none"
        # Not through pytest, whose main thread may be what hangs.
        message = f"\n\nThe run was ended: {reason}. Running tests:{running}\n"
        os.write(sys.__stderr__.fileno() if sys.__stderr__ else 2, message.encode())
        _end(_processes_of(self._run))
        os._exit(1)


def _processes_of(run: str) -> Iterator[psutil.Process]:
    """Processes of a run and of the runs within it, except this one."""
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            if process.pid != os.getpid() and process.environ().get(_RUN, "").startswith(run):
                yield process


def _holders_of(pipe: IO[bytes]) -> Iterator[psutil.Process]:
    """Other processes that hold a pipe of this one.

    A process that a worker forked holds the pipe on which the worker reported, and as long as it
    does, the worker does not seem dead.
    """
    with contextlib.suppress(OSError, ValueError):  # the pipe is closed, or this is not Linux
        name = os.readlink(f"/proc/self/fd/{pipe.fileno()}")
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error, OSError):
                links = Path(f"/proc/{process.pid}/fd").iterdir()
                if process.pid != os.getpid() and any(os.readlink(link) == name for link in links):
                    yield process


def _end(processes: Iterable[psutil.Process]) -> None:
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()


def pytest_configure(config: pytest.Config) -> None:
    """Register the limits where the run is controlled, with the limits of its tests."""
    if hasattr(config, "workerinput") or not config.pluginmanager.hasplugin("timeout"):
        return
    slowest_s = float(config.getini("faulthandler_timeout") or 0) + GRACE_S
    session_s = float(config.getini("session_timeout") or 0)
    config.pluginmanager.register(
        Limits(slowest_s if slowest_s > GRACE_S else float("inf"), session_s + slowest_s if session_s else float("inf"))
    )

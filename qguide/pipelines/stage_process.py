"""The process of one stage: its log file, its end, and the time that it took."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from time import monotonic
from typing import NamedTuple

import psutil

from qguide.server.upstreams import process_guard
from qguide.training.data.left_out import DIFFER
from qguide.training.data.runs import RunFolder


@dataclass(frozen=True, slots=True)
class ProcessEnd:
    """The end of a process: its status and times.

    Attributes:
        exit_status: 128 and the signal's number if a signal ended it, as in shells.
        cpu_s: user and system time, with that of the processes that it started and waited for.
    """

    exit_status: int
    wall_s: float
    cpu_s: float


class StageProcess:
    """A running stage, in a session of its own, which does not outlive this process.

    Its standard output and error are appended to the log, after a line with the command.
    """

    def __init__(self, command: Sequence[str], *, shown: str, log: Path) -> None:
        log.parent.mkdir(parents=True, exist_ok=True)
        self._started = monotonic()
        self._cpu_at_kill_s = 0.0
        with log.open("ab") as file:
            file.write(f"$ {shown}  # {datetime.now(UTC):%Y-%m-%d %H:%M:%S} UTC\n".encode())
            file.flush()
            self._process = subprocess.Popen(
                # The guard kills the stage if this process is killed and cannot do it any more.
                [sys.executable, "-I", process_guard.__file__, *command],
                stdin=subprocess.PIPE,
                stdout=file,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # so that Ctrl-C reaches it through `interrupt` only
            )

    def wait(self) -> ProcessEnd:
        """Wait for the end; must be called once."""
        # wait4 rather than `Popen.wait`: it also tells the CPU time.
        _, status, usage = os.wait4(self._process.pid, 0)
        self._process.returncode = os.waitstatus_to_exitcode(status)
        assert self._process.stdin is not None
        self._process.stdin.close()
        code = self._process.returncode
        return ProcessEnd(
            exit_status=code if code >= 0 else 128 - code,
            wall_s=monotonic() - self._started,
            cpu_s=max(usage.ru_utime + usage.ru_stime, self._cpu_at_kill_s),
        )

    def interrupt(self) -> None:
        """Ask it to end, as Ctrl-C would; a job then leaves a run folder that it can resume."""
        self._signal(signal.SIGINT)

    def kill(self) -> None:
        """End it and everything that it started, at once."""
        self._cpu_at_kill_s = self._cpu_s()  # the guard cannot wait for it any more
        self._signal(signal.SIGKILL)

    def _cpu_s(self) -> float:
        total = 0.0
        with suppress(psutil.NoSuchProcess):
            guard = psutil.Process(self._process.pid)
            for process in (guard, *guard.children(recursive=True)):
                with suppress(psutil.NoSuchProcess):
                    times = process.cpu_times()
                    total += times.user + times.system
        return total

    def _signal(self, number: int) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, number)


def last_lines(log: Path, count: int) -> list[str]:
    """The last lines of a log that are not empty; reads only its end."""
    with suppress(FileNotFoundError), log.open("rb") as file:
        file.seek(max(0, log.stat().st_size - 16_384))
        lines = file.read().decode(errors="replace").splitlines()
        return [line.rstrip() for line in lines if line.strip()][-count:]
    return []


class FailedTask(NamedTuple):
    """A task and its error; whether its replays differed, so that it is not tried again with profit."""

    text: str
    differs: bool = False


def failures_since(output: Path, start: int) -> list[FailedTask]:
    """The failures in a run folder's metrics, from a byte on: each task and its error.

    The harness writes {"task_id": …, "error": …} for a task, `evaluate` for an episode.
    """
    metrics = RunFolder(output).metrics
    if not metrics.is_file():
        return []
    return list(filter(None, map(_failure, metrics.read_bytes()[start:].splitlines())))


def _failure(line: bytes) -> FailedTask | None:
    try:
        row = json.loads(line)
    except ValueError:  # a last line that a kill cut short
        return None
    failed = isinstance(row, dict) and row.keys() >= {"task_id", "error"}
    return FailedTask(f"{row['task_id']}: {row['error']}", DIFFER in row) if failed else None

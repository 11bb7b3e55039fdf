"""A child process says what it says, ends with what it started, and does not outlive its parent."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from qguide.qnet.errors import ConfigError
from qguide.server.upstreams import process_guard
from qguide.server.upstreams.managed_process import ManagedProcess
from tests.support.serving import lives

START_S = 120.0
GUARD = [sys.executable, "-I", process_guard.__file__]
SLEEPER = "import os, time; print(os.getpid(), flush=True); time.sleep(600)"
PARENT = f"""
import subprocess, sys, time
subprocess.Popen([sys.executable, "-c", {SLEEPER!r}])
time.sleep(600)
"""
DEAF = f"""
import signal
signal.signal(signal.SIGTERM, signal.SIG_IGN)
{SLEEPER}
"""


def python(code: str) -> list[str]:
    return [sys.executable, "-c", code]


def started(code: str, output: Path | Callable[[str], None]) -> ManagedProcess:
    return ManagedProcess("it", python(code), environment=os.environ, output=output)


def until(found: Callable[[], bool]) -> None:
    deadline = time.monotonic() + START_S
    while not found():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.02)


def test_each_line_is_told_and_what_it_started_ends_with_it() -> None:
    lines: list[str] = []
    with started(PARENT, lines.append) as process:
        process.wait_until(lambda: bool(lines), timeout_s=START_S)
        grandchild = int(lines[0])
        assert lives(grandchild)
    assert not process.running
    until(lambda: not lives(grandchild))
    process.close()  # twice does no harm


def test_one_that_ignores_the_request_to_end_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("qguide.server.upstreams.managed_process._END_S", 0.5)
    lines: list[str] = []
    with started(DEAF, lines.append) as process:
        process.wait_until(lambda: bool(lines), timeout_s=START_S)
    assert process.status == -signal.SIGKILL
    until(lambda: not lives(int(lines[0])))


@pytest.mark.parametrize("to_file", [False, True])
def test_one_that_ends_too_early_is_explained_in_its_own_words(tmp_path: Path, to_file: bool) -> None:
    output = tmp_path / "log" if to_file else lambda _: None
    with (
        pytest.raises(ConfigError, match=r"(?s) 3 .*\nno .*model"),
        started("import sys; print('no such model'); sys.exit(3)", output) as process,
    ):
        process.wait_until(lambda: False, timeout_s=START_S)


def test_one_that_is_never_ready_is_given_up(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"within 0\.1 s"), started(SLEEPER, tmp_path / "log") as process:
        process.wait_until(lambda: False, timeout_s=0.1)


def test_a_program_that_is_not_there_is_an_error() -> None:
    with pytest.raises(ConfigError, match="nowhere; install"):
        ManagedProcess("it", ["nowhere"], environment=os.environ, output=lambda _: None)


def test_it_ends_also_when_this_process_is_killed() -> None:
    with subprocess.Popen(
        [*GUARD, *python(SLEEPER)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True
    ) as guard:
        assert guard.stdin is not None
        assert guard.stdout is not None
        guarded = int(guard.stdout.readline())
        assert lives(guarded)
        guard.stdin.close()  # as the end of a process does
        until(lambda: not lives(guarded))
    assert guard.returncode == -signal.SIGKILL


def test_the_guard_hands_on_how_it_ended() -> None:
    command = [*GUARD, *python("raise SystemExit(7)")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True) as guard:
        assert guard.wait(START_S) == 7

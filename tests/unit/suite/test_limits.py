"""A run of tests ends and says where it stood, whatever its tests do."""

import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest

ROOT = Path(__file__).parents[3]

WORKERS = ("-n", "2", "--dist", "loadfile")

LIMITS = {"timeout": "2", "faulthandler_timeout": "6", "faulthandler_exit_on_timeout": "true", "session_timeout": "300"}

ENDS = "def test_one():\n    pass\n\ndef test_two():\n    pass\n"


def _without_ci() -> dict[str, str]:
    """The environment, but for what makes pytest cut no line of its summary on a CI machine."""
    return {name: value for name, value in os.environ.items() if name not in {"CI", "COLUMNS"}}


def run(folder: Path, *options: str, **limits: str) -> tuple[int, str]:
    """Exit status and output of a run of the folder's tests in two workers, with short limits."""
    chosen = [word for name, value in (LIMITS | limits).items() for word in ("-o", f"{name}={value}")]
    plugins = [f"-p{name}" for name in ("timeout", "xdist", "tests.support.limits")]
    (folder / "pytest.ini").write_text("[pytest]\n")
    ended = subprocess.run(
        [sys.executable, "-m", "pytest", "-pno:cacheprovider", *plugins, *chosen, *options, folder],
        env=_without_ci() | {"PYTHONPATH": str(ROOT), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    return ended.returncode, ended.stdout + ended.stderr


@pytest.mark.parametrize("options", [(), pytest.param(WORKERS, marks=pytest.mark.slow)])
def test_a_test_that_takes_too_long_fails_and_the_others_run(tmp_path: Path, options: tuple[str, ...]) -> None:
    (tmp_path / "test_a.py").write_text(
        "import time\n\ndef test_hangs():\n    time.sleep(3600)\n\ndef test_after():\n    pass\n"
    )
    (tmp_path / "test_b.py").write_text(ENDS)
    code, output = run(tmp_path, *options)
    assert code == 1
    assert "FAILED test_a.py::test_hangs" in output
    assert "time.sleep(3600)" in output
    assert "1 failed, 3 passed" in output


# The lock of the interpreter is held, so that no thread and no signal handler of Python runs.
HOLDS_THE_INTERPRETER = """import ctypes

def test_before():
    pass

def test_holds_the_interpreter():
    libc, mutex = ctypes.PyDLL(None), ctypes.create_string_buffer(64)
    libc.pthread_mutex_lock(mutex)
    libc.pthread_mutex_lock(mutex)

def test_after():
    pass
"""


def test_a_process_that_notices_nothing_is_ended_and_its_test_named(tmp_path: Path) -> None:
    (tmp_path / "test_a.py").write_text(HOLDS_THE_INTERPRETER)
    (tmp_path / "test_b.py").write_text(ENDS)
    code, output = run(tmp_path, *WORKERS)
    assert code == 1
    assert "crashed while running 'test_a.py::test_holds_the_interpreter'" in output
    assert "in test_holds_the_interpreter" in output  # where its thread stood
    assert "1 failed, 4 passed" in output


@pytest.mark.parametrize("files", [12, pytest.param(1, marks=pytest.mark.slow)])
def test_a_worker_that_dies_fails_its_test_once_and_the_others_run(tmp_path: Path, files: int) -> None:
    # Its process stays behind with the pipe on which the worker reported.
    (tmp_path / "test_m.py").write_text(
        "import os, time\n\ndef test_before():\n    pass\n\n"
        "def test_dies():\n"
        "    if os.fork() == 0:\n        time.sleep(3600)\n"
        "    os._exit(9)\n\ndef test_after():\n    pass\n"
    )
    for i in range(files):
        (tmp_path / f"test_{'az'[i % 2]}{i}.py").write_text(ENDS)
    code, output = run(tmp_path, *WORKERS)
    assert code == 1
    assert output.count("crashed while running 'test_m.py::test_dies'") == 1
    assert f"1 failed, {2 + 2 * files} passed" in output


IMPATIENT = """import time
from tests.support.limits import Limits

def pytest_configure(config):
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(Limits(silence_s={silence_s}, whole_s={whole_s}), "impatient")

def pytest_sessionfinish(session):
    time.sleep(3600)
"""


LIMIT_S = 5
ENDINGS = {
    f"no test has started or ended for {LIMIT_S} s": {"silence_s": LIMIT_S, "whole_s": 3600},
    f"the whole run takes longer than {LIMIT_S} s": {"silence_s": 3600, "whole_s": LIMIT_S},
}


def test_a_run_that_does_not_end_is_ended(tmp_path: Path) -> None:
    folders = [tmp_path / str(number) for number in range(len(ENDINGS))]
    for folder, limits in zip(folders, ENDINGS.values(), strict=True):
        folder.mkdir()
        (folder / "conftest.py").write_text(IMPATIENT.format(**limits))
        (folder / "test_a.py").write_text(ENDS)
        (folder / "test_b.py").write_text(ENDS)
    with ThreadPoolExecutor() as both:  # each takes its limit, so they wait together
        ended = both.map(lambda folder: run(folder, *WORKERS), folders)
        for (code, output), reason in zip(ended, ENDINGS, strict=True):
            assert code == 1
            assert f"The run was ended: {reason}. Running tests: none" in output


def test_a_run_that_takes_too_long_begins_no_further_test(tmp_path: Path) -> None:
    (tmp_path / "test_a.py").write_text(
        "import time\n\ndef test_is_long():\n    time.sleep(1.5)\n\ndef test_after():\n    pass\n"
    )
    code, output = run(tmp_path, session_timeout="1")
    assert code == 1
    assert "session-timeout: 1.0 sec exceeded" in output
    assert "1 passed" in output


def test_what_tests_leave_behind_ends_with_the_run(tmp_path: Path) -> None:
    (tmp_path / "test_a.py").write_text(
        "import pathlib, subprocess, sys\n\ndef test_leaves_a_process():\n"
        "    command = [sys.executable, '-c', 'import time; time.sleep(3600)']\n"
        "    child = subprocess.Popen(command, start_new_session=True)\n"
        f"    pathlib.Path({str(tmp_path / 'pid')!r}).write_text(str(child.pid))\n"
    )
    code, _ = run(tmp_path, *WORKERS)  # returns although the child has its output
    assert code == 0
    pid = int((tmp_path / "pid").read_text())
    until = time.monotonic() + 20  # a killed process may be seen for a while
    while not _has_ended(pid):
        assert time.monotonic() < until
        time.sleep(0.05)


def _has_ended(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True

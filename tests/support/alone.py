"""Tests marked `alone` run in a process of their own.

A process that forks, as a training in several processes does, copies whatever the tests before it
left behind: threads that no longer run, the locks they held, and the pipe to the process that
controls the run. In a process of its own a test finds what a job finds.
"""

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from typing import Final

import pytest

_INSIDE: Final = "SUITE_ALONE"
"""Variable that tells a process to run such a test itself."""

_SHARE: Final = 0.8
"""Part of a test's limit for the process: it ends first, and says where the test stood."""


class Alone(pytest.Item):
    """A test that another process runs."""

    def runtest(self) -> None:
        """Run it there, and fail with the output of that process if it does not pass."""
        __tracebackhide__ = True
        limit_s = _SHARE * float(self.config.getini("timeout") or 0)
        options = ["-q", "-n", "0", "-p", "no:cacheprovider", f"--timeout={limit_s:g}"]
        code, output = _run([sys.executable, "-m", "pytest", *options, self.nodeid], self.config)
        if code:
            pytest.fail(f"exit status {code} of its process:\n{output}", pytrace=False)


def _run(command: Sequence[str], config: pytest.Config) -> tuple[int, str]:
    # A file, not a pipe, which a forked process could hold open when the test has died.
    with tempfile.TemporaryFile() as output:
        process = subprocess.Popen(
            command,
            cwd=config.rootpath,
            env=os.environ | {_INSIDE: "1"},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            code = process.wait()
        finally:
            with contextlib.suppress(ProcessLookupError):  # nothing of it is left
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        output.seek(0)
        return code, output.read().decode(errors="replace")


def put_alone(items: list[pytest.Item]) -> None:
    """Replace the tests that are marked, unless this process is theirs."""
    if os.environ.get(_INSIDE):
        return
    for i, item in enumerate(items):
        if item.get_closest_marker("alone"):
            assert item.parent is not None
            items[i] = Alone.from_parent(item.parent, name=item.name)
            items[i].own_markers.extend(item.own_markers)
            items[i].add_marker("server")

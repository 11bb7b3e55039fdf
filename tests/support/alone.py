"""Tests marked `alone` run in a process of their own.

A process that forks, as a training in several processes does, copies whatever the tests before it
left behind: threads that no longer run, the locks they held, and the pipe to the process that
controls the run. In a process of its own a test finds what a job finds.
"""

import contextlib
import os
import runpy
import signal
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from multiprocessing import get_context
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any, Final

import pytest

_INSIDE: Final = "SUITE_ALONE"
"""Variable that tells a process to run such a test itself."""

_SHARE: Final = 0.8
"""Part of a test's limit for the process: it ends first, and says where the test stood."""

_FRESH: Final = get_context("forkserver")
# Imported once, in a process that does nothing else: torch and its libraries take seconds.
_FRESH.set_forkserver_preload(
    [
        *("pytest", "tests.conftest", "tests.support.trainings"),
        "torch._dynamo",  # the first optimizer of a process imports it
        *("qguide.cli", "qguide.server.app", "qguide.server.q_models.local_models"),
        *("transformers.models.llama.modeling_llama", "transformers.tokenization_utils_tokenizers"),
    ]
)

_OPTIONS: Final = (
    *("-q", "-n", "0", "-p", "no:cacheprovider"),
    *("-W", "ignore:Module already imported:pytest.PytestAssertRewriteWarning"),
)


def fresh_process(work: Callable[..., Any], *arguments: Any) -> ForkServerProcess:
    """A process, not yet started, that has imported what trainings need and has done nothing."""
    return _FRESH.Process(target=work, args=arguments)


class Alone(pytest.Item):
    """A test that another process runs."""

    def runtest(self) -> None:
        """Run it there, and fail with the output of that process if it does not pass."""
        __tracebackhide__ = True
        limit_s = _SHARE * float(self.config.getini("timeout") or 0)
        options = [f"--timeout={limit_s:g}", self.nodeid]
        code, output = run_tests(options, cwd=self.config.rootpath)
        if code:
            pytest.fail(f"exit status {code} of its process:\n{output}", pytrace=False)


def run_forked(
    main: Callable[[list[str]], str | int | None],
    arguments: Sequence[str],
    *,
    cwd: Path,
    variables: Mapping[str, str] | None = None,
) -> tuple[int | None, str]:
    """Exit status and output of what a command line would run, in a fresh process."""
    # A file, not a pipe, which a forked process could hold open when the test has died.
    with tempfile.NamedTemporaryFile() as output:
        environment = os.environ | {_INSIDE: "1"} | dict(variables or {})
        process = fresh_process(_run_here, main, list(arguments), cwd, environment, output.name)
        process.start()
        try:
            process.join()
        finally:
            process.kill()
            assert process.pid is not None
            with contextlib.suppress(ProcessLookupError):  # nothing of it is left
                os.killpg(process.pid, signal.SIGKILL)
            process.join()
        return process.exitcode, output.read().decode(errors="replace")


def run_tests(
    options: Sequence[str], *, cwd: Path, variables: Mapping[str, str] | None = None
) -> tuple[int | None, str]:
    """Exit status and output of pytest in a fresh process."""
    return run_forked(pytest.main, [*_OPTIONS, *options], cwd=cwd, variables=variables)


def run_script(arguments: list[str]) -> None:
    """Run a script by its path, with the arguments behind it, as Python would."""
    sys.argv = arguments
    sys.path.insert(0, str(Path(arguments[0]).parent))
    runpy.run_path(arguments[0], run_name="__main__")


def _run_here(
    main: Callable[[list[str]], str | int | None],
    arguments: list[str],
    folder: Path,
    environment: Mapping[str, str],
    output: str,
) -> None:
    os.setsid()
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    with open(output, "wb") as file:
        for stream in (1, 2):
            os.dup2(file.fileno(), stream)
    sys.exit(main(arguments))


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

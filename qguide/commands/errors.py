"""Printing of errors and of retries for all commands: the message without a traceback."""

import errno
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NoReturn

import typer
from rich.console import Console
from stamina.instrumentation import RetryDetails, get_on_retry_hooks, set_on_retry_hooks

from qguide.qnet.errors import ConfigError, QGuideError

INTERRUPTED = 130
"""Exit status after Ctrl-C, as in shells."""

_OF_FILES = {
    errno.EACCES: "allow it, or name another place",
    errno.EDQUOT: "free space, and run the same command again",
    errno.EEXIST: "name another place",
    errno.EFBIG: "raise the limit of file sizes, and run the same command again",
    errno.EIO: "look at the disk",
    errno.EISDIR: "name a file",
    errno.ENAMETOOLONG: "shorten the name",
    errno.ENOSPC: "free space, and run the same command again",
    errno.ENOTDIR: "name a folder",
    errno.EPERM: "allow it, or name another place",
    errno.EROFS: "name another place",
}
"""Errors of the machine's files that are no bugs, and their remedies."""

GOES_ON = "interrupted; run the same command again to resume"

EVERY_S = 30.0
"""Least time between two notices of retries."""


@contextmanager
def shown_errors(*, config_status: int = 2, other_status: int = 1, interrupted: str = GOES_ON) -> Iterator[None]:
    """Print a `QGuideError`, or an error of the machine's files, and exit.

    Any other exception is a bug and keeps its traceback.

    Retries meanwhile are printed by `RetryNotice`, at most one line in 30 seconds.
    """
    try:
        with noted_retries():
            yield
    except QGuideError as error:
        exit_with(str(error), config_status if isinstance(error, ConfigError) else other_status, error)
    except OSError as error:
        if error.errno not in _OF_FILES:
            raise
        place = f"{error.filename}: " if error.filename else ""
        exit_with(f"{place}{error.strerror}; {_OF_FILES[error.errno]}", other_status, error)
    except KeyboardInterrupt:
        exit_with(interrupted, INTERRUPTED)


def exit_with(message: str, status: int, cause: Exception | None = None) -> NoReturn:
    """Print an error and exit."""
    console = Console(stderr=True, soft_wrap=True, highlight=False)
    console.print("[red]error:[/red]", end=" ")
    console.print(message, markup=False)
    raise typer.Exit(status) from cause


class RetryNotice:
    """Print why requests are sent again, at most once in `EVERY_S` seconds.

    With a hundred requests in flight stamina's own line per retry would hide everything else.
    """

    def __init__(self) -> None:
        self._next_s = 0.0

    def __call__(self, details: RetryDetails) -> None:
        """Print the failure, unless there was a notice a moment ago."""
        now_s = time.monotonic()
        if now_s < self._next_s:
            return
        self._next_s = now_s + EVERY_S
        console = Console(stderr=True, soft_wrap=True, highlight=False)
        console.print("[yellow]trying again:[/yellow]", end=" ")
        console.print(str(details.caused_by), markup=False)


@contextmanager
def noted_retries() -> Iterator[None]:
    """Replace stamina's retry hooks by a `RetryNotice` inside the block."""
    before = get_on_retry_hooks()
    set_on_retry_hooks([RetryNotice()])
    try:
        yield
    finally:
        set_on_retry_hooks(before)

"""Printing of errors and of retries for all commands: the message without a traceback."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import NoReturn

import typer
from rich.console import Console

from qguide.commands.retries import noted_retries
from qnet.errors import ConfigError, QGuideError

INTERRUPTED = 130
"""Exit status after Ctrl-C, as in shells."""

GOES_ON = "interrupted; run the same command again to resume"


@contextmanager
def shown_errors(
    *, config_status: int = 2, other_status: int = 1, interrupted: str = GOES_ON
) -> Iterator[None]:
    """Print a `QGuideError` and exit. Any other exception is a bug and keeps its traceback.

    Retries meanwhile are printed by `RetryNotice`, at most one line in 30 seconds.

    Args:
        config_status: exit status of a `ConfigError`; 2 like a usage error.
        other_status: exit status of every other `QGuideError`.
        interrupted: message after Ctrl-C.
    """
    try:
        with noted_retries():
            yield
    except QGuideError as error:
        exit_with(
            str(error), config_status if isinstance(error, ConfigError) else other_status, error
        )
    except KeyboardInterrupt:
        exit_with(interrupted, INTERRUPTED)


def exit_with(message: str, status: int, cause: Exception | None = None) -> NoReturn:
    """Print an error and exit.

    Raises:
        Exit: always.
    """
    console = Console(stderr=True, soft_wrap=True, highlight=False)
    console.print("[red]error:[/red]", end=" ")
    console.print(message, markup=False)
    raise typer.Exit(status) from cause

"""One printer for the errors of all commands: the reason and the remedy, no traceback."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import NoReturn

import typer
from rich.console import Console

from qnet.errors import ConfigError, QGuideError

INTERRUPTED = 130
"""Exit status of a command that Ctrl-C ended, as shells have it."""

GOES_ON = "interrupted; the same command goes on where it was"


@contextmanager
def shown_errors(
    *, config_status: int = 2, other_status: int = 1, interrupted: str = GOES_ON
) -> Iterator[None]:
    """Print a `QGuideError` and exit. Any other exception is a bug and keeps its traceback.

    Args:
        config_status: exit status of a wrong configuration: 2, as usage errors have.
        other_status: of every other `QGuideError`.
        interrupted: what Ctrl-C leaves behind.
    """
    try:
        yield
    except QGuideError as error:
        exit_with(
            str(error), config_status if isinstance(error, ConfigError) else other_status, error
        )
    except KeyboardInterrupt:
        exit_with(interrupted, INTERRUPTED)


def exit_with(message: str, status: int, cause: Exception | None = None) -> NoReturn:
    """Print an error and end the command.

    Raises:
        Exit: always.
    """
    console = Console(stderr=True, soft_wrap=True, highlight=False)
    console.print("[red]error:[/red]", end=" ")
    console.print(message, markup=False)
    raise typer.Exit(status) from cause

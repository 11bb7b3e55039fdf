"""Notices about requests that are sent again, for commands that are watched in a terminal."""

import time
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from stamina.instrumentation import RetryDetails, get_on_retry_hooks, set_on_retry_hooks

EVERY_S = 30.0


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

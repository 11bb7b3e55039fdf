"""The protocol of scorers that can read a history ahead of its candidates."""

from collections.abc import Callable, Iterator
from typing import Any, Protocol, runtime_checkable

from qguide.qnet.types import ScoreRequest


@runtime_checkable
class HistoryReader(Protocol):
    """A scorer that can read a history before it has candidates."""

    def prepare_history(self, request: ScoreRequest) -> Any:
        """The tokens of a request's history, on any thread; None where none can be read ahead."""
        ...

    def read_ahead(self, prepared: Any, *, begin: Callable[[int], None]) -> Iterator[None]:
        """Read a history pass by pass; between two of them nothing of the cache is in use.

        Args:
            begin: told before each pass how many tokens it computes.
        """
        ...

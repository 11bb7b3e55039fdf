"""Scorers that share a device: they work in slices, and keep histories between requests."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from qguide.qnet.types import Scorer, ScoreRequest, ScoreResult, Slices


@dataclass(frozen=True, slots=True)
class CacheUse:
    """Cache state of a scorer.

    Attributes:
        nbytes: of keys and values.
        evictions: histories dropped so far because the budget was full.
    """

    nbytes: int = 0
    evictions: int = 0


class SlicedScorer(Scorer, Protocol):
    """A scorer that works in slices, so that others may use the device in between."""

    def prepare(self, request: ScoreRequest) -> Any:
        """Prepare a request for `slices`, on any thread: tokenize it.

        Raises:
            HistoryTooLongError: history and candidate exceed the trunk's context.
        """
        ...

    def slices(self, prepared: Sequence[Any]) -> Slices[list[ScoreResult]]:
        """The results of `score` for the requests that these were prepared from."""
        ...


class CachingScorer(SlicedScorer, Protocol):
    """A scorer that keeps histories between requests; the thread that scores owns it."""

    @property
    def context(self) -> int | None:
        """Most tokens of history and candidate; None: no limit."""
        ...

    @property
    def cache(self) -> CacheUse:
        """Current state of its cache."""
        ...

    def close(self) -> None:
        """Let go of every history and connection; it scores no more."""
        ...

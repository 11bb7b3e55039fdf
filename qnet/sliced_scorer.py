"""Scorers that share a device: they work in slices, and may keep histories between requests."""

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from qguide.qnet.types import Scorer, ScoreRequest, ScoreResult
from qguide.qnet.work import TokenUsage

Result = TypeVar("Result")

Spending = Mapping[int, TokenUsage]
"""Tokens that some requests of a batch, by their index, have cost once the next slice has run."""

Slices = Generator[Spending, frozenset[int], Result]
"""Work on a batch that stops before each slice: it says what it will have cost by the slice's end,
and is sent the indices of the requests that have been given up."""


@dataclass(frozen=True, slots=True)
class CacheUse:
    """Cache state of a scorer."""

    nbytes: int = 0
    evictions: int = 0


class CachingScorer(Scorer):
    """A scorer in slices, so that others may use the device in between; one thread owns it.

    A subclass defines `score` or `slices`, and of the rest what it does.

    Attributes:
        context: most tokens of history and candidate; None: no limit.
        reads_ahead: it can read a history before it has candidates.
    """

    context: int | None = None
    reads_ahead: bool = False

    def score(self, requests: Sequence[ScoreRequest]) -> list[ScoreResult]:
        """Q of each candidate, in the requests' order."""
        return finish(self.slices([self.prepare(request) for request in requests]))

    def prepare(self, request: ScoreRequest) -> Any:
        """Prepare a request for `slices`, on any thread: tokenize it.

        Raises:
            HistoryTooLongError: history and candidate exceed the trunk's context.
        """
        return request

    def slices(self, prepared: Sequence[Any]) -> Slices[list[ScoreResult]]:
        """The results of `score` for the requests that these were prepared from."""
        yield {}
        return self.score(prepared)

    def prepare_history(self, request: ScoreRequest) -> Any:
        """The tokens of a request's history, on any thread; None where none can be read ahead."""
        return None

    def read_ahead(self, prepared: Any, *, begin: Callable[[int], None]) -> Iterator[None]:
        """Read a history pass by pass; between two of them nothing of the cache is in use.

        Args:
            begin: told before each pass how many tokens it computes.
        """
        return iter(())

    @property
    def cache(self) -> CacheUse:
        """Current state of its cache."""
        return CacheUse()

    def close(self) -> None:
        """Let go of every history and connection; it scores no more."""


def finish(work: Generator[Any, Any, Result]) -> Result:
    """Run all slices, and return the result."""
    try:
        while True:
            next(work)
    except StopIteration as end:
        result: Result = end.value
        return result

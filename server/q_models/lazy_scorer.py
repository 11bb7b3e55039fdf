"""A Q model's scorer, built where it is used."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from qguide.qnet.device.history_reader import HistoryReader
from qguide.qnet.sliced_scorer import CacheUse, CachingScorer
from qguide.qnet.types import ScoreRequest, ScoreResult, Slices


class LazyScorer:
    """A scorer that is built at its first use, and built, used and closed on one thread.

    Attributes:
        cache: cache statistics at the last `look`; readable from any thread.
    """

    def __init__(self, name: str, build: Callable[[], CachingScorer]) -> None:
        self.name = name
        self.cache = CacheUse()
        self._build: Callable[[], CachingScorer] | None = build
        self._scorer: CachingScorer | None = None

    def open(self) -> int | None:
        """Build the scorer if necessary; returns its context length."""
        return self._opened().context

    def score(self, requests: Sequence[ScoreRequest]) -> list[ScoreResult]:
        """Score requests; the first call builds the scorer."""
        return self._opened().score(requests)

    def prepare(self, request: ScoreRequest) -> Any:
        """Prepare a request for `slices`; unchanged until the scorer is built."""
        scorer = self._scorer
        return request if scorer is None else scorer.prepare(request)

    def slices(self, prepared: Sequence[Any]) -> Slices[list[ScoreResult]]:
        """Score prepared requests in slices; the first call builds the scorer."""
        scorer = self._opened()
        return scorer.slices(
            [scorer.prepare(one) if isinstance(one, ScoreRequest) else one for one in prepared]
        )

    @property
    def reads_ahead(self) -> bool:
        """True if the scorer has been built and can read a history before its candidates."""
        return self._reader is not None

    def prepare_history(self, request: ScoreRequest) -> Any:
        """The tokens of a request's history; None if the scorer cannot read ahead."""
        reader = self._reader
        return None if reader is None else reader.prepare_history(request)

    def read_ahead(self, prepared: Any, *, begin: Callable[[int], None]) -> Iterator[None]:
        """Read a history into the scorer's cache, pass by pass."""
        reader = self._reader
        if reader is not None:  # the scorer may have been closed meanwhile
            yield from reader.read_ahead(prepared, begin=begin)

    @property
    def _reader(self) -> HistoryReader | None:
        scorer: object = self._scorer
        return scorer if isinstance(scorer, HistoryReader) else None

    def look(self) -> int:
        """Update `cache`; returns the number of histories evicted since the last call."""
        before, self.cache = self.cache.evictions, self._opened().cache
        return self.cache.evictions - before

    def close(self) -> None:
        """Free cache and connections, and the weights unless they are shared."""
        if self._scorer is not None:
            self._scorer.close()
        self._scorer = self._build = None

    def _opened(self) -> CachingScorer:
        if self._scorer is None:
            assert self._build is not None, "scoring with a closed Q model"
            self._scorer = self._build()
        return self._scorer

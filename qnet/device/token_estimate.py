"""An estimate of a score request's new tokens, from its texts alone.

Counting them would take the tokenizer and the scorer's cache, which belong to the device thread;
an estimate is enough to say how many requests make a batch.
"""

from collections.abc import Iterator, Sequence
from itertools import accumulate, chain

from qguide.qnet.support.lru_cache import LRUCache
from qguide.qnet.types import Message, ScoreRequest

CHARACTERS_PER_TOKEN = 4
"""Of English, in the vocabularies of today's models."""

_REMEMBERED = 65_536


class UncachedTokenEstimator:
    """Estimates new tokens by remembering the histories that were scored.

    Safe for several threads. Histories that the scorer has evicted since still count as known.
    """

    def __init__(self) -> None:
        self._known = LRUCache[int, bool](size=_REMEMBERED)

    def new_tokens(self, request: ScoreRequest) -> int:
        """About how many tokens the scorer would have to compute for it now, at least 1."""
        answers = chain.from_iterable(request.observations)
        characters = sum(len(message.text) for message in chain(request.candidates, answers))
        ends = list(_ends(request))
        for message, end in zip(reversed(request.history), reversed(ends), strict=False):
            if self._known.get(end):
                break
            characters += len(message.text)
        return 1 + characters // CHARACTERS_PER_TOKEN

    def remember(self, requests: Sequence[ScoreRequest]) -> None:
        """Note that these were scored; the next history may continue with any candidate."""
        for request in requests:
            *_, end = _ends(request)
            for known in (end, *(_after(end, candidate) for candidate in request.candidates)):
                self._known.put(known, True, size=1)


def _ends(request: ScoreRequest) -> Iterator[int]:
    """A hash of each prefix of the history under its salt, the empty one first."""
    return accumulate(request.history, _after, initial=hash(request.cache_salt))


def _after(beginning: int, message: Message) -> int:
    return hash((beginning, message))

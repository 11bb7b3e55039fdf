"""A synchronous scorer behind the asynchronous interface of the server, and its reading ahead.

While a hosted model draws, the device may have nothing to do. The history is then read pass by
pass, each only when no request waits for the device, and the candidates find what has been read.

How many requests make a batch is told by an estimate of their new tokens, from their texts alone:
counting them would take the tokenizer and the scorer's cache, which belong to the device thread.
"""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import CancelledError, Future
from dataclasses import dataclass, replace
from functools import partial
from itertools import accumulate, chain
from threading import Lock
from typing import Any

from cachetools import LRUCache

from qguide.qnet.device.device_thread import DEFAULT_MAX_BATCH, DeviceThread, DeviceWorker, Ending
from qguide.qnet.errors import QGuideError
from qguide.qnet.sliced_scorer import CachingScorer, Slices
from qguide.qnet.types import Message, ScoreRequest, ScoreResult
from qguide.qnet.work import TokenUsage, current_tenant

DEFAULT_MAX_BATCH_TOKENS = 2048
"""As many as one forward pass takes: a larger batch would be split into several passes anyway."""
CHARACTERS_PER_TOKEN = 4
"""Of English, in the vocabularies of today's models."""
_REMEMBERED = 65_536


class ReadAhead:
    """One history that is being read ahead, until it is stopped.

    Args:
        characters: of the history, about as many as are new to the scorer.
        when_read: called once all of the history has been read, on the device thread.
    """

    def __init__(
        self,
        scorer: CachingScorer,
        thread: DeviceThread,
        request: ScoreRequest,
        *,
        characters: int,
        when_read: Callable[[], None] = lambda: None,
    ) -> None:
        self._scorer = scorer
        self._thread = thread
        self._when_read = when_read
        self._lock = Lock()
        self._stopped = False
        self._tokens = 0
        self._reading: Future[None] | None = None
        self._preparing = thread.tokenizing(partial(scorer.prepare_history, request), characters=characters)
        self._preparing.add_done_callback(self._begin)

    def stop(self) -> int:
        """Stop before the next pass; returns the number of tokens that were computed.

        What was read stays in the cache.
        """
        with self._lock:
            self._stopped = True
        self._preparing.cancel()
        if self._reading is not None:
            self._reading.cancel()
        return self._tokens

    def wait(self, timeout_s: float) -> None:
        """Wait until the whole history has been read, at most so long; for tests and benchmarks."""
        self._preparing.result(timeout_s)
        if self._reading is not None:
            self._reading.result(timeout_s)

    def _begin(self, preparing: "Future[Any]") -> None:
        """Start to read; on the thread that prepared the tokens."""
        try:
            prepared = preparing.result()
        except (QGuideError, CancelledError):  # the request that scores is told the same
            return
        with self._lock:
            # Under the lock that `stop` takes: else it might be stopped after the look and before the start.
            if self._stopped or prepared is None:
                return
            self._reading = self._thread.when_idle(self._scorer.read_ahead(prepared, begin=self._count))
        self._reading.add_done_callback(self._end)

    def _end(self, reading: "Future[None]") -> None:
        if not reading.cancelled() and reading.exception() is None:
            self._when_read()

    def _count(self, tokens: int) -> None:
        self._tokens += tokens


@dataclass(frozen=True, slots=True)
class _Prepared:
    """A request, an estimate of its new tokens, and what the scorer prepares of it."""

    request: ScoreRequest
    new_tokens: int
    tokens: "Future[Any]"


class ScoringWorker:
    """A synchronous scorer, awaited one request at a time and run in micro-batches by a `DeviceWorker`.

    Args:
        max_batch_tokens: new tokens of one micro-batch, estimated from its texts' length.
        timeout_s: how long a request may take on the device, waiting included; None: no limit.
    """

    def __init__(
        self,
        scorer: CachingScorer,
        thread: DeviceThread,
        *,
        max_batch: int = DEFAULT_MAX_BATCH,
        max_batch_tokens: int = DEFAULT_MAX_BATCH_TOKENS,
        timeout_s: float | None = None,
        observe: Callable[[int, float], None] = lambda *_: None,
        observe_wait: Callable[[float, Ending], None] = lambda *_: None,
        observe_unanswered: Callable[[TokenUsage], None] = lambda _: None,
    ) -> None:
        self.name = scorer.name
        self._scorer = scorer
        self._uncached = UncachedTokenEstimator()
        self._timeout_s = timeout_s
        self._worker = DeviceWorker[_Prepared, ScoreResult](
            thread,
            self._score,
            max_batch=max_batch,
            cost=lambda prepared: prepared.new_tokens,
            max_cost=max_batch_tokens,
            observe=observe,
            observe_wait=observe_wait,
            observe_unanswered=observe_unanswered,
        )

    @property
    def healthy(self) -> bool:
        """True while requests are being served."""
        return self._worker.thread.healthy

    async def score(self, request: ScoreRequest) -> ScoreResult:
        """Q of each candidate of one request."""
        salted = replace(request, cache_salt=current_tenant().cache_salt)
        new_tokens = self._uncached.new_tokens(salted)
        tokens = self._worker.thread.tokenizing(
            partial(self._scorer.prepare, salted), characters=new_tokens * CHARACTERS_PER_TOKEN
        )
        prepared = _Prepared(salted, new_tokens, tokens)
        return await self._worker.submit(prepared, after=tokens, timeout_s=self._timeout_s)

    def read_ahead(self, request: ScoreRequest) -> ReadAhead | None:
        """Begin to read a history, whose candidates do not exist yet; None if the scorer cannot read ahead."""
        if not self._scorer.reads_ahead:
            return None
        salted = replace(request, cache_salt=current_tenant().cache_salt)
        characters = self._uncached.new_tokens(salted) * CHARACTERS_PER_TOKEN
        return ReadAhead(
            self._scorer,
            self._worker.thread,
            salted,
            characters=characters,
            when_read=partial(self._uncached.remember, [salted]),
        )

    def _score(self, batch: Sequence[_Prepared]) -> Slices[list[ScoreResult]]:
        results = yield from self._scorer.slices([prepared.tokens.result() for prepared in batch])
        self._uncached.remember([prepared.request for prepared in batch])
        return results


class UncachedTokenEstimator:
    """Estimates new tokens by remembering the histories that were scored.

    Safe for several threads. Histories that the scorer has evicted since still count as known.
    """

    def __init__(self) -> None:
        self._known: LRUCache[int, bool] = LRUCache(_REMEMBERED)
        self._lock = Lock()

    def new_tokens(self, request: ScoreRequest) -> int:
        """About how many tokens the scorer would have to compute for it now, at least 1."""
        answers = chain.from_iterable(request.observations)
        characters = sum(len(message.text) for message in chain(request.candidates, answers))
        ends = list(_ends(request))
        # From the newest message back to the longest beginning that was scored.
        with self._lock:  # also for reading, which makes an entry the latest used
            for message, end in zip(reversed(request.history), reversed(ends), strict=False):
                if self._known.get(end):
                    break
                characters += len(message.text)
        # At least 1, because `DeviceWorker` takes a cost of 0 for one that is not known.
        return 1 + characters // CHARACTERS_PER_TOKEN

    def remember(self, requests: Sequence[ScoreRequest]) -> None:
        """Note that these were scored; the next history may continue with any candidate."""
        for request in requests:
            *_, end = _ends(request)
            scored = dict.fromkeys((end, *(_after(end, candidate) for candidate in request.candidates)), True)
            with self._lock:  # which the event loop waits for
                self._known.update(scored)


def _ends(request: ScoreRequest) -> Iterator[int]:
    """A hash of each prefix of the history under its salt, the empty one first."""
    return accumulate(request.history, _after, initial=hash(request.cache_salt))


def _after(beginning: int, message: Message) -> int:
    return hash((beginning, message))

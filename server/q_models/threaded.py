"""Q models whose scorers run on threads of this process; and what a request holds: a version and its shadow.

A shadow scores the same request without delaying it: it starts when the request has its scores, and runs on a thread of
its own. Its result is only logged and counted: the second model's choice is never returned.
"""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import structlog

from qguide.qnet.decision.history_window import RequestSize
from qguide.qnet.decision.selection import select
from qguide.qnet.device.device_thread import DeviceThread
from qguide.qnet.device.scoring_worker import ReadAhead, ScoringWorker
from qguide.qnet.errors import ScorerUnavailableError
from qguide.qnet.features.domain import AnyDomain
from qguide.qnet.models.manifest import Manifest
from qguide.qnet.sliced_scorer import CacheUse, CachingScorer, Slices
from qguide.qnet.turns import resting
from qguide.qnet.types import History, Message, ScoreRequest, ScoreResult
from qguide.qnet.work import record_usage
from qguide.server.observability.metrics import Metrics, Outcome
from qguide.server.q_models.schemas import Source
from qguide.server.q_models.served import Runtime, ServedQModel, Texts, Written

if TYPE_CHECKING:
    from qguide.qnet.rendering.renderer import Renderer

_log = structlog.get_logger(__name__)


class LazyScorer(CachingScorer):
    """A scorer that is built at its first use, and built, used and closed on one thread."""

    def __init__(self, name: str, build: Callable[[], CachingScorer]) -> None:
        self.name = name
        self.cached = CacheUse()  # cache statistics at the last `look`; readable from any thread
        self._build: Callable[[], CachingScorer] | None = build
        self._scorer: CachingScorer | None = None

    def open(self) -> int | None:
        """Build the scorer if necessary; returns its context length."""
        self.reads_ahead = self._opened().reads_ahead
        return self._opened().context

    def prepare(self, request: ScoreRequest) -> Any:
        """Prepare a request for `slices`; unchanged until the scorer is built."""
        return request if self._scorer is None else self._scorer.prepare(request)

    def slices(self, prepared: Sequence[Any]) -> Slices[list[ScoreResult]]:
        """Score prepared requests in slices; the first call builds the scorer."""
        scorer = self._opened()
        return scorer.slices([scorer.prepare(one) if isinstance(one, ScoreRequest) else one for one in prepared])

    def prepare_history(self, request: ScoreRequest) -> Any:
        """The tokens of a request's history; None before the scorer is built."""
        return None if self._scorer is None else self._scorer.prepare_history(request)

    def read_ahead(self, prepared: Any, *, begin: Callable[[int], None]) -> Iterator[None]:
        """Read a history into the scorer's cache, pass by pass."""
        if self._scorer is not None:  # it may have been closed meanwhile
            yield from self._scorer.read_ahead(prepared, begin=begin)

    def look(self) -> int:
        """Update `cached`; returns the number of histories evicted since the last call."""
        before, self.cached = self.cached.evictions, self._opened().cache
        return self.cached.evictions - before

    def close(self) -> None:
        """Free cache and connections, and the weights unless they are shared."""
        if self._scorer is not None:
            self._scorer.close()
        self._scorer = self._build = None
        self.reads_ahead = False

    def _opened(self) -> CachingScorer:
        if self._scorer is None:
            assert self._build is not None, "scoring with a closed Q model"
            self._scorer = self._build()
        return self._scorer


@dataclass(frozen=True, slots=True)
class ScorerSource:
    """Source of a Q model, from which its scorers are built."""

    # builds a scorer with an empty cache; called on the thread that will score with it
    build: Callable[[], CachingScorer]
    source: Source
    manifest: Manifest | None = None
    own_thread: bool = False  # score on a separate thread, because it waits on a network and the device thread must not
    precision: str = ""
    renderer: "Renderer | None" = None
    domain: AnyDomain | None = None


class QModel(ServedQModel):
    """One version of a Q model whose scorers run on threads; owned by the event loop."""

    def __init__(self, name: str, version: str, origin: ScorerSource, runtime: Runtime) -> None:
        manifest = origin.manifest
        super().__init__(
            name,
            version,
            origin.source,
            runtime,
            manifest=manifest,
            domain=origin.domain,
            content=f"{manifest.model_dump_json()} {origin.precision}" if manifest else "",
        )
        self._renderer = origin.renderer
        self._own_thread = origin.own_thread
        self._thread = DeviceThread(max_waiting=runtime.settings.max_waiting) if origin.own_thread else runtime.thread
        self._resident = LazyScorer(name, origin.build)
        self._shadow_resident = LazyScorer(name, origin.build)
        self._worker = self._worker_of(self._resident, self._thread)
        self._shadow_worker = self._worker_of(self._shadow_resident, runtime.shadow_thread)

    async def _score(self, request: ScoreRequest) -> ScoreResult:
        return await self._worker.score(request)

    async def _score_apart(self, request: ScoreRequest) -> ScoreResult:
        return await self._shadow_worker.score(request)

    @property
    def healthy(self) -> bool:
        """True while its scoring thread is alive."""
        return self._thread.healthy

    @property
    def waiting(self) -> frozenset[int]:
        """Requests that wait for a thread of its own; none if it has none."""
        return self._thread.waiting if self._own_thread else frozenset()

    @property
    def cached_bytes(self) -> int:
        """Keys and values that it keeps between requests."""
        return self._resident.cached.nbytes

    async def count_tokens(self, history: History) -> int | None:
        """Tokens of a history as it reads it, however many they are; None without a tokenizer."""
        if self._renderer is None:
            return None
        encode = partial(self._renderer.encode_history, history)
        return len(await self._thread.tokenize(encode, characters=_characters(history)))

    async def pieces(self, texts: Sequence[str], *, special: bool, write: Callable[[Texts], Written]) -> Written | None:
        """The result of `write` for the tokens of plain texts; None without a tokenizer."""
        if self._renderer is None:
            return None
        split = partial(self._renderer.pieces, special=special)

        def work() -> Written:
            with resting():
                return write(map(split, texts))

        return await self._thread.tokenize(work, characters=sum(map(len, texts)))

    async def measure(self, request: ScoreRequest) -> RequestSize | None:
        """Number of tokens of a request, however many they are; None without a tokenizer."""
        if self._renderer is None or self.context is None:
            return None
        # With a tokenizer there is numpy, which a server without Q models of its own lacks.
        from qguide.qnet.scoring.rendered_requests import request_size

        work = partial(request_size, self._renderer, request, self.context)
        characters = _characters((*request.history, *request.candidates))
        return await self._thread.tokenize(work, characters=characters)

    def read_ahead(self, request: ScoreRequest) -> ReadAhead | None:
        """Begin to read a history into the prefix cache; None if it has none in this process."""
        return self._worker.read_ahead(request) if self._resident.reads_ahead else None

    def open(self) -> None:
        """Build the scorer on the scoring thread; must be called from another thread."""
        self.context = self._thread.call(self._resident.open).result()
        self._runtime.metrics.start_series(self.id)

    def close(self) -> None:
        """Stop its own thread and close its connections, even if requests still wait.

        For shutdown, after the runtime's threads have been closed, which frees everything else.
        """
        if self._own_thread:
            self._thread.close()
            self._resident.close()
            self._shadow_resident.close()

    def _close_retired(self) -> None:
        if self._own_thread and not self._thread.healthy:  # only this thread died
            self._close()
        for thread, close in ((self._thread, self._close), (self._runtime.shadow_thread, self._close_shadow)):
            with suppress(ScorerUnavailableError):  # at shutdown; the process frees the memory
                thread.call(close)

    def _close(self) -> None:
        self._resident.close()
        self._remove_series()
        if self._own_thread:
            self._thread.close()

    def _close_shadow(self) -> None:
        self._shadow_resident.close()
        # A late batch may have created series again.
        self._remove_series()

    def _worker_of(self, resident: LazyScorer, thread: DeviceThread) -> ScoringWorker:
        runtime = self._runtime
        return ScoringWorker(
            resident,
            thread,
            max_batch=runtime.settings.max_batch,
            max_batch_tokens=runtime.settings.tokens_per_forward,
            timeout_s=runtime.settings.timeout_s,
            observe=partial(self._observe, resident),
            observe_wait=partial(runtime.metrics.observe_wait, self.id),
            observe_unanswered=record_usage,
        )

    def _observe(self, resident: LazyScorer, requests: int, run_s: float) -> None:
        evicted = resident.look()
        kept = self._resident.cached.nbytes + self._shadow_resident.cached.nbytes
        self._runtime.metrics.observe_batch(self.id, requests, run_s, cache_bytes=kept, evicted=evicted)


def _characters(messages: Sequence[Message]) -> int:
    return sum(len(message.text) for message in messages)


class ShadowScoring:
    """Running shadow scoring tasks; their number is limited by the shadow thread's queue."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._tasks: set[asyncio.Task[None]] = set()

    def start(self, request: ScoreRequest, result: ScoreResult, *, q_model: str, shadow: ServedQModel) -> None:
        """Start scoring with the shadow, which is held until the task has ended."""
        # Before the task begins: by then the version might have been dropped and closed.
        shadow.hold()
        task = asyncio.create_task(self._score(request, result, q_model, shadow))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        task.add_done_callback(lambda _: shadow.release())

    async def close(self) -> None:
        """Cancel all running tasks."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _score(self, request: ScoreRequest, result: ScoreResult, q_model: str, shadow: ServedQModel) -> None:
        try:
            again = await shadow.score_uncharged(request)
            self._metrics.count_tokens(shadow.id, computed=again.computed_tokens, cached=again.cached_tokens)
            chosen = select(request.candidates, result.q_values).chosen
            shadow_chosen = select(request.candidates, again.q_values).chosen
        except Exception as error:  # its message is not logged, because it may hold a prompt
            self._metrics.count_shadow(shadow.id, "failed")
            reason = type(error).__name__
            _log.warning("shadow_failed", q_model=q_model, shadow=shadow.id, reason=reason)
            return
        outcome: Outcome = "agreed" if chosen == shadow_chosen else "disagreed"
        self._metrics.count_shadow(shadow.id, outcome)
        _log.info(
            "shadow_scored",
            q_model=q_model,
            shadow=shadow.id,
            chosen=chosen,
            shadow_chosen=shadow_chosen,
            q_values=list(result.q_values),
            shadow_q_values=list(again.q_values),
        )


@dataclass(frozen=True, slots=True)
class QModelLease:
    """The version of a Q model that a request holds until its end."""

    model: ServedQModel
    scoring: ShadowScoring
    shadow: ServedQModel | None = None

    @property
    def id(self) -> str:
        """`name@version`."""
        return self.model.id

    @property
    def name(self) -> str:
        """The name without the version."""
        return self.model.name

    async def score(self, request: ScoreRequest) -> ScoreResult:
        """Score each candidate, then start the shadow."""
        result = await self.model.score(request)
        if self.shadow is not None:
            self.scoring.start(request, result, q_model=self.id, shadow=self.shadow)
        return result

"""The Q models that are served: added, swapped and dropped while requests run.

A request finds its version once, at its beginning, and holds it to its end. A version that is no
longer served is closed when its last request has let it go: its cache, weights and connections
are freed on the thread that used them, behind whatever still runs there.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

from structlog.contextvars import bound_contextvars

from qnet.device.device_thread import DeviceThread
from qnet.device.device_worker import BatchRun
from qnet.device.fair_thread import DEFAULT_MAX_WAITING
from qnet.device.scoring_worker import DEFAULT_MAX_BATCH_TOKENS, ScoringWorker
from qnet.errors import ScorerUnavailableError
from qnet.models.checkpoint import Manifest
from qnet.policies.usage_ledger import record_usage
from qnet.types import AsyncScorer, CacheUse, CachingScorer, ScoreRequest, ScoreResult, Slices
from server.context.request_context import name_episode
from server.observability.metered import MeteredScorer
from server.observability.metrics import Metrics
from server.q_models.aliases import DEFAULT, AliasTable, Shares, join
from server.q_models.score_cache import CachedScorer, ScoreCache
from server.q_models.shadow import ShadowedScorer, ShadowScoring
from server.redis.client import RedisLink

Source = Literal["embedded", "scripted", "checkpoint", "vllm", "upstream"]


@dataclass(frozen=True, slots=True)
class Runtime:
    """Threads, metrics and caches that all Q models share.

    Attributes:
        thread: the device's; every answer comes from it, but for those that wait on a network.
        shadow_thread: where shadows score, so that a slow one keeps no request waiting.
        timeout_s: of scoring, its waiting included.
        max_waiting: requests that may wait for a thread that a Q model has of its own.
        redis: None where none is configured.
        score_cache: None asks the Q model every time.
    """

    thread: DeviceThread
    shadow_thread: DeviceThread
    metrics: Metrics
    max_batch: int
    timeout_s: float
    max_waiting: int = DEFAULT_MAX_WAITING
    max_batch_tokens: int = DEFAULT_MAX_BATCH_TOKENS
    redis: RedisLink | None = None
    score_cache: ScoreCache | None = None


@dataclass(frozen=True, slots=True)
class ScorerSource:
    """Source of a Q model.

    Attributes:
        build: a scorer with an empty cache; called on the thread that will score with it.
        manifest: None for a fake.
        precision: the dtype that it computes in.
        own_thread: it waits on a network, for which the device must never wait.
    """

    build: Callable[[], CachingScorer]
    source: Source
    manifest: Manifest | None = None
    own_thread: bool = False
    precision: str = ""


class QModel:
    """One version of a Q model; the event loop owns it, its scorers belong to their threads."""

    def __init__(self, name: str, version: str, origin: ScorerSource, runtime: Runtime) -> None:
        self.id = join(name, version)
        self.name = name
        self.version = version
        self.source = origin.source
        self.manifest = origin.manifest
        self.context: int | None = None
        self._runtime = runtime
        self._own_thread = origin.own_thread
        self._thread = (
            DeviceThread(max_waiting=runtime.max_waiting) if origin.own_thread else runtime.thread
        )
        self._resident = LazyScorer(name, origin.build)
        self._shadow_resident = LazyScorer(name, origin.build)
        self.scorer: AsyncScorer = self._worker(self._resident, self._thread)
        if runtime.score_cache and origin.manifest:
            content = f"{origin.manifest.model_dump_json()} {origin.precision}"
            self.scorer = CachedScorer(self.scorer, runtime.score_cache, content=content)
        self.scorer = MeteredScorer(self.scorer, runtime.metrics, q_model=self.id)
        self.shadow_scorer: AsyncScorer = self._worker(self._shadow_resident, runtime.shadow_thread)
        self._holders = 0
        self._retired = False

    @property
    def healthy(self) -> bool:
        """True while the thread that scores is alive."""
        return self._thread.healthy

    def open(self) -> None:
        """Build the scorer on the thread that scores; call it from any other.

        Raises:
            CheckpointError: the architecture does not run on packed tokens.
            ConfigError: the trunk's server will not do.
        """
        self.context = self._thread.call(self._resident.open).result()
        self._runtime.metrics.know(self.id)

    def close(self) -> None:
        """Stop a thread of its own and let go of the connections, whoever still waits.

        For the server's end, behind the threads of the runtime: they take all else with them.
        """
        if self._own_thread:
            self._thread.close()
            self._resident.close()
            self._shadow_resident.close()

    def hold(self) -> None:
        """Keep the version as it is until `release`."""
        self._holders += 1

    def release(self) -> None:
        """Let the version go; the last one to do so closes a retired one."""
        self._holders -= 1
        self._close_if_unused()

    def retire(self) -> None:
        """Close the version as soon as nobody holds it."""
        self._retired = True
        self._close_if_unused()

    def _close_if_unused(self) -> None:
        if not self._retired or self._holders:
            return
        if self._own_thread and not self._thread.healthy:  # it died alone; the server lives on
            self._close()
        for thread, close in (
            (self._thread, self._close),
            (self._runtime.shadow_thread, self._close_shadow),
        ):
            with suppress(ScorerUnavailableError):  # the server ends, and all memory with it
                thread.call(close)

    def _close(self) -> None:
        self._resident.close()
        self._runtime.metrics.forget(self.id)
        if self._own_thread:
            self._thread.close()

    def _close_shadow(self) -> None:
        self._shadow_resident.close()
        self._runtime.metrics.forget(self.id)  # what a batch that ran on has told since

    def _worker(self, resident: "LazyScorer", thread: DeviceThread) -> ScoringWorker:
        runtime = self._runtime
        return ScoringWorker(
            resident,
            thread,
            max_batch=runtime.max_batch,
            max_batch_tokens=runtime.max_batch_tokens,
            timeout_s=runtime.timeout_s,
            observe=partial(self._observe, resident),
            observe_wait=partial(runtime.metrics.observe_wait, self.id),
            observe_unanswered=record_usage,
        )

    def _observe(self, resident: "LazyScorer", batch: BatchRun) -> None:
        evicted = resident.look()
        kept = self._resident.cache.nbytes + self._shadow_resident.cache.nbytes
        self._runtime.metrics.observe_batch(self.id, batch, cache_bytes=kept, evicted=evicted)


class LazyScorer:
    """A scorer that is built, used and closed on one thread; a `Scorer` itself.

    Attributes:
        cache: what the scorer kept when it was last looked at; for any thread.
    """

    def __init__(self, name: str, build: Callable[[], CachingScorer]) -> None:
        self.name = name
        self.cache = CacheUse()
        self._build: Callable[[], CachingScorer] | None = build
        self._scorer: CachingScorer | None = None

    def open(self) -> int | None:
        """Build the scorer unless it is there; the context it takes."""
        return self._opened().context

    def score(self, requests: Sequence[ScoreRequest]) -> list[ScoreResult]:
        """Results of the scorer; the first call builds it."""
        return self._opened().score(requests)

    def prepare(self, request: ScoreRequest) -> Any:
        """The request as the scorer prepares it; as it is until there is a scorer."""
        scorer = self._scorer
        return request if scorer is None else scorer.prepare(request)

    def slices(self, prepared: Sequence[Any]) -> Slices[list[ScoreResult]]:
        """Results of the scorer; the first call builds it."""
        scorer = self._opened()
        return scorer.slices(
            [scorer.prepare(one) if isinstance(one, ScoreRequest) else one for one in prepared]
        )

    def look(self) -> int:
        """See what the scorer keeps; how many histories it has dropped since the last look."""
        before, self.cache = self.cache.evictions, self._opened().cache
        return self.cache.evictions - before

    def close(self) -> None:
        """Free the cache and connections, and the weights where nobody else has them."""
        if self._scorer is not None:
            self._scorer.close()
        self._scorer = self._build = None

    def _opened(self) -> CachingScorer:
        if self._scorer is None:
            assert self._build is not None, "a closed Q model is scored with"
            self._scorer = self._build()
        return self._scorer


@dataclass(frozen=True, slots=True)
class QModelLease:
    """The version that a request got, held until its end."""

    id: str
    name: str
    version: str
    scorer: AsyncScorer


class QModels:
    """All Q models and what leads to them. Not thread-safe: the event loop owns it."""

    def __init__(self, metrics: Metrics) -> None:
        self.routes = AliasTable()
        self._models: dict[str, QModel] = {}
        self._shadows = ShadowScoring(metrics)

    def __iter__(self) -> Iterator[QModel]:
        return iter(self._models.values())

    @contextmanager
    def hold(self, name: str | None, *, episode_id: str | None = None) -> Iterator[QModelLease]:
        """The Q model of that name for one request; None takes the default.

        Raises:
            UnknownModelError: no such Q model is served.
        """
        wanted = DEFAULT if name is None else name
        model = self._models[self.routes.resolve(wanted, episode_id)]
        shadow = self._shadow_of(model, episode_id)
        if episode_id is not None:
            name_episode(episode_id)
        with (
            bound_contextvars(**({} if episode_id is None else {"episode_id": episode_id})),
            _held(model),
            nullcontext() if shadow is None else _held(shadow),
        ):
            scorer = ShadowedScorer(model, shadow, self._shadows) if shadow else model.scorer
            yield QModelLease(model.id, model.name, model.version, scorer)

    def add(self, model: QModel, *, replacing: bool = False) -> None:
        """Serve an opened Q model; see `AliasTable.add`.

        Raises:
            RoutingError: its name is taken, or something leads to the version it would replace.
        """
        routes = self.routes.add(model.id, replacing=replacing)
        self._models[model.id] = model
        self._change(routes)

    def configure(self, aliases: Mapping[str, Shares], shadows: Mapping[str, str]) -> None:
        """Set the operator's names; aliases may lead to each other.

        Raises:
            RoutingError: a name would lead nowhere, in a circle or to two things.
        """
        known = self.routes.aliases
        self._change(replace(self.routes, aliases={**known, **aliases}, shadows=dict(shadows)))

    def drop(self, version: str) -> None:
        """Serve a version no more; the requests that run with it end with it.

        Raises:
            RoutingError: something leads to it.
            UnknownModelError: it is not served.
        """
        self._change(self.routes.drop(version))

    def move(self, alias: str, to: Shares) -> None:
        """Let an alias lead somewhere else from the next request on.

        Raises:
            RoutingError: it would lead nowhere, in a circle or to two things.
        """
        self._change(self.routes.move(alias, to))

    def shadow(self, name: str, by: str | None) -> None:
        """Score the requests of a Q model a second time, or no longer.

        Raises:
            RoutingError: one of the two is not served.
        """
        self._change(self.routes.shadow(name, by))

    async def close(self) -> None:
        """Stop what shadows still do."""
        await self._shadows.close()

    def _change(self, routes: AliasTable) -> None:
        self.routes = routes
        for version in self._models.keys() - set(routes.versions):
            self._models.pop(version).retire()

    def _shadow_of(self, model: QModel, episode_id: str | None) -> QModel | None:
        name = self.routes.shadows.get(model.name)
        shadow = self._models[self.routes.resolve(name, episode_id)] if name else None
        return None if shadow is model else shadow


@contextmanager
def _held(model: QModel) -> Iterator[None]:
    model.hold()
    try:
        yield
    finally:
        model.release()

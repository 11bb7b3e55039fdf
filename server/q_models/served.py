"""Served policies and versions of Q models: what they run on, and how their work is measured and charged."""

import math
import re
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from time import perf_counter
from typing import TYPE_CHECKING, Any, Final, Literal, TypeVar

from qguide.qnet.decision.history_window import RequestSize
from qguide.qnet.device.device_thread import DeviceThread
from qguide.qnet.device.scoring_worker import ReadAhead
from qguide.qnet.errors import RoutingError
from qguide.qnet.features.domain import AnyDomain
from qguide.qnet.models.manifest import Manifest
from qguide.qnet.policies.openai_compatible import OpenAICompatiblePolicy
from qguide.qnet.policies.pool import PolicyPool
from qguide.qnet.policies.upstream_dialects import DialectName
from qguide.qnet.scoring.rules import RuleName, compares_draws, rules_before
from qguide.qnet.types import Candidate, History, Policy, Sampling, ScoreRequest, ScoreResult, TaskMarker, spent_on
from qguide.qnet.work import TokenUsage, collect_usage, in_session, total_of
from qguide.server.observability.metrics import Metrics
from qguide.server.q_models.schemas import JudgeCard, Source
from qguide.server.q_models.score_cache import cached_score
from qguide.server.redis.client import RedisLink, SharedRows
from qguide.server.settings.settings import EMBEDDED, SCRIPTED, Settings

if TYPE_CHECKING:
    from qguide.qnet.rendering.renderer import Piece

NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/-]{0,63}")
_VERSION: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")

Texts = Iterable[Iterable["Piece"]]
"""Tokens of each of several texts."""
Written = TypeVar("Written")

Stage = Literal["paraphrase", "sample", "score"]


def plain_name(version: str) -> str:
    """The name of a `name@version`."""
    return version.partition("@")[0]


def join(name: str, version: str) -> str:
    """Join name and version to `name@version`."""
    if not NAME.fullmatch(name) or not _VERSION.fullmatch(version):
        raise RoutingError(
            f"{name!r} and {version!r} are not a valid name and version; use 1 to 64 letters, digits and ._- (in a "
            "name also /), starting with a letter or digit"
        )
    return f"{name}@{version}"


def source_of(setting: str) -> Source:
    """Source of a model that a setting names as "embedded" or by its folder or hub name."""
    return EMBEDDED if setting == EMBEDDED else "checkpoint"


@dataclass(frozen=True, slots=True)
class Runtime:
    """Settings, threads, metrics and caches that all Q models share."""

    thread: DeviceThread  # the device thread, which runs everything that does not wait on a network
    shadow_thread: DeviceThread  # thread for shadow scoring, so that slow shadows delay no request
    metrics: Metrics
    settings: Settings
    redis: RedisLink | None = None
    scores: SharedRows | None = None  # rows of the score cache; None without one


@dataclass(frozen=True, slots=True)
class ServedPolicy:
    """A policy, the metadata of its checkpoint, and what it is beside: how it is asked for more than draws."""

    name: str
    model: Policy
    source: Source
    context: int | None = None  # context length in tokens; None for a fake, or an upstream whose settings name none
    manifest: Manifest | None = None  # None for a fake, an upstream or a folder that is not a QGuide checkpoint
    upstream_model: str | None = None  # the model's name at its upstream; None if it runs in this process
    dialect: DialectName = "chat"
    # the policy itself if it is one upstream's, which also counts, compacts and passes on
    upstream: OpenAICompatiblePolicy | None = None
    pool: PolicyPool | None = None  # the policy itself if several draw in its place

    @property
    def task_markers(self) -> tuple[TaskMarker, ...]:
        """Markers of the task in a first user message, if its checkpoint has any."""
        return self.manifest.task_markers if self.manifest else ()


class MeteredPolicy:
    """A policy whose draws are traced, timed and charged.

    A draw that fails or is cancelled is charged for what upstreams have answered and the device has computed by then;
    the tokens of an unfinished upstream request are unknown.
    """

    def __init__(self, policy: Policy, metrics: Metrics, *, stage: Stage, session_id: str = "") -> None:
        self.name = policy.name
        self._policy = policy
        self._metrics = metrics
        self._stage = stage
        self._session_id = session_id  # the episode that the draws belong to, and nothing else of the step; "" for none

    async def sample(self, history: History, *, n: int, sampling: Sampling) -> list[Candidate]:
        """Draw candidates, measuring the time including waits."""
        with measured(self._stage, self._metrics), collect_usage() as answered:
            try:
                with in_session(self._session_id):
                    drawn = await self._policy.sample(history, n=n, sampling=sampling)
            except BaseException:  # including the cancellation when the client disconnects
                self._count(total_of(answered))
                raise
        spent = spent_on(drawn)
        self._count(spent)
        if not drawn or any(candidate.spent for candidate in drawn):
            return drawn
        # As upstreams report it, so that a decision's usage equals the charge.
        return [replace(drawn[0], spent=spent), *drawn[1:]]

    def _count(self, spent: TokenUsage) -> None:
        self._metrics.count_drawn(prompt=spent.prompt_tokens, completion=spent.completion_tokens)
        if self._stage == "paraphrase":
            self._metrics.paraphrase_tokens.inc(spent.prompt_tokens + spent.completion_tokens)


class ServedQModel(ABC):
    """One version of a Q model; owned by the event loop."""

    kind: str = "a Q model"
    prompted: JudgeCard | None = None
    context: int | None = None  # most tokens of history and candidate; None if unknown
    ranks: bool = False  # its values mean nothing beyond the candidates of their own step
    comparable: str = "name another Q model"  # remedy for a caller who needs values that can be compared between steps
    # remedy for a caller who needs its tokens counted, where it counts none
    countable: str = "shorten the history, or name another Q model"
    only_votes: bool = False  # its values are how often each candidate was drawn
    refusal: str = ""  # why `none` scores nothing; "" for a Q model

    def __init__(
        self,
        name: str,
        version: str,
        source: Source,
        runtime: Runtime,
        *,
        manifest: Manifest | None = None,
        domain: AnyDomain | None = None,
        content: str = "",
    ) -> None:
        self.id = join(name, version)
        self.name = name
        self.version = version
        self.source = source
        self.manifest = manifest
        self.domain = domain
        self.upstream = ""  # name of the upstream that is prompted; "" for other Q models
        self._rules: tuple[RuleName, ...] = ()
        self._runtime = runtime
        self._content = content  # what its results are cached under; "" caches none
        self._holders = 0
        self._retired = False
        self._keeps_series = False

    @property
    def highest_q(self) -> float:
        """The highest value that it gives: the highest label of its training, if that is known."""
        if self.manifest and self.manifest.label_range:
            return self.manifest.label_range[1]
        return 1.0 if self.source == SCRIPTED else math.inf

    @property
    def named(self) -> dict[str, Any]:
        """Fields of an answer that say whose Q-values it has."""
        prompted = self.prompted is not None
        return {"q_model": self.name, "q_model_version": self.version, "judge": prompted}

    @property
    def recorded(self) -> dict[str, Any]:
        """Fields of a record that say whose Q-values it has."""
        return {"q_model": self.id, "judge": self.prompted is not None, "ranked": self.ranks}

    def put_behind(self, rules: Sequence[RuleName]) -> None:
        """Let rules stand before its values; for a Q model that has not served yet."""
        self._rules = tuple(rules)
        if compares_draws(rules):
            self.kind, self.ranks = "a rule", True
            self.comparable = ServedQModel.comparable

    async def score(self, request: ScoreRequest) -> ScoreResult:
        """Score each candidate: by the cache or the model, which is charged, behind the rules."""
        result = await _metered(self._cached(request), self._runtime.metrics, self.id)
        return self._behind_rules(request, result)

    async def score_uncharged(self, request: ScoreRequest) -> ScoreResult:
        """Score as a shadow does: without charging anyone."""
        return self._behind_rules(request, await self._score_apart(request))

    def _behind_rules(self, request: ScoreRequest, result: ScoreResult) -> ScoreResult:
        return rules_before(self._rules, request, result) if self._rules else result

    async def _cached(self, request: ScoreRequest) -> ScoreResult:
        rows = self._runtime.scores
        if rows is None or not self._content:
            return await self._score(request)
        return await cached_score(rows, request, self._score, content=self._content)

    @abstractmethod
    async def _score(self, request: ScoreRequest) -> ScoreResult:
        """Ask the model."""

    async def _score_apart(self, request: ScoreRequest) -> ScoreResult:
        """Ask the model where no other request waits for it."""
        return await self._score(request)

    @property
    def healthy(self) -> bool:
        """True while it can answer."""
        return True

    @property
    def waiting(self) -> frozenset[int]:
        """Requests that wait for a thread of its own; none if it has none."""
        return frozenset()

    @property
    def cached_bytes(self) -> int:
        """Keys and values that it keeps between requests."""
        return 0

    async def count_tokens(self, history: History) -> int | None:
        """Tokens of a history as the Q model reads it; None if it has no tokenizer here."""
        return None

    async def pieces(self, texts: Sequence[str], *, special: bool, write: Callable[[Texts], Written]) -> Written | None:
        """The result of `write` for the tokens of plain texts; None without a tokenizer here.

        `write` is called in the tokenizer's thread: a long text has very many tokens. Of `special` see
        `Renderer.pieces`.
        """
        return None

    def read_ahead(self, request: ScoreRequest) -> ReadAhead | None:
        """Begin to read a history before its candidates exist; None if it cannot."""
        return None

    async def measure(self, request: ScoreRequest) -> RequestSize | None:
        """Number of tokens of a request as the Q model reads it; None if it cannot be told here."""
        return None

    def close(self) -> None:  # noqa: B027
        """Stop what it runs by itself, even if requests still wait; for shutdown."""

    def hold(self) -> None:
        """Keep the version open until `release`."""
        self._holders += 1

    def release(self) -> None:
        """Release the version; the last release closes a retired version."""
        self._holders -= 1
        self._close_if_unused()

    def retire(self, *, keep_series: bool = False) -> None:
        """Close the version as soon as no request holds it.

        Args:
            keep_series: leave its metrics, which are another's of the same id.
        """
        self._retired, self._keeps_series = True, keep_series
        self._close_if_unused()

    def _close_if_unused(self) -> None:
        if self._retired and not self._holders:
            self._close_retired()

    def _close_retired(self) -> None:
        """Free what the version has; no request holds it any more."""
        self._remove_series()

    def _remove_series(self) -> None:
        if not self._keeps_series:
            self._runtime.metrics.remove_series(self.id)


async def _metered(scoring: Awaitable[ScoreResult], metrics: Metrics, q_model: str) -> ScoreResult:
    """A score that is traced, timed including waits, and charged, even if it fails."""
    with measured("score", metrics), collect_usage() as unanswered:
        try:
            result = await scoring
        except BaseException:  # including the cancellation when the client disconnects
            spent = total_of(unanswered)
            computed = spent.prompt_tokens + spent.completion_tokens
            metrics.count_scored(q_model, computed=computed, cached=0)
            raise
    metrics.count_scored(q_model, computed=result.computed_tokens, cached=result.cached_tokens)
    return result


@contextmanager
def measured(stage: Stage, metrics: Metrics) -> Iterator[None]:
    """Trace a stage and record its time, even if it fails."""
    started = perf_counter()
    try:
        with metrics.tracing.stage(stage):
            yield
    finally:
        metrics.stage_seconds.labels(stage).observe(perf_counter() - started)


@contextmanager
def kept_open(model: ServedQModel | None) -> Iterator[None]:
    """Keep a version open within the block; None is no version."""
    if model is None:
        yield
        return
    model.hold()
    try:
        yield
    finally:
        model.release()

"""Sessions that grow for minutes: does memory keep to its budget, and does Q stay right?

Every session is a conversation of random words in which the best candidate becomes the action; one
that fills the context begins anew, half of them with a task that others have, too. After every
call the cache is held against its budget, and now and then one request's Q against `NaiveScorer`'s.
"""

import os
import time
from collections.abc import Callable, Sequence
from random import Random
from typing import Protocol

import psutil
from pydantic import Field

from qguide.bench.measurement.measure import TOLERANCES, largest_difference
from qguide.bench.measurement.options import EMBEDDED, BenchOptions, Device, Dtype, OutputFile
from qguide.bench.measurement.records import SoakRun, SoakSample
from qnet.errors import ConfigError
from qnet.rendering.renderer import Renderer
from qnet.types import CacheUse, Message, Scorer, ScoreRequest, ScoreResult

_WORDS = ("you", "see", "open", "cabinet", "drawer", "plate", "mug", "apple", "take", "go", "to")
_TASKS = 8
_MOST_TASK_WORDS = 200
_SAMPLES = 600
_SHORTEST_INTERVAL_S = 0.1

Advance = Callable[[float], None]


class Soak(BenchOptions):
    """Options of one run.

    Attributes:
        output: JSON file; the plot goes beside it.
        sessions: conversations at once.
        minutes: how long.
        q_model: "embedded", or a checkpoint folder.
        cache_mib: the cache's budget.
        url: a server that serves the Q model; "" scores in this process.
        pid: the server's process, whose memory is read; 0 where that cannot be known.
        candidates: M.
        batch: sessions in one call.
        check_share: of the calls after which one request is compared with the reference.
        dtype: of weights and activations.
        device: "cpu" or "cuda".
        threads: torch's.
        seed: of what is said.
        command: as it was typed.
    """

    output: OutputFile
    sessions: int = Field(default=64, ge=1)
    minutes: float = Field(default=10.0, ge=0)
    q_model: str = EMBEDDED
    cache_mib: float = Field(default=512, ge=0)
    url: str = ""
    pid: int = Field(default=0, ge=0)
    candidates: int = Field(default=5, ge=1)
    batch: int = Field(default=16, ge=1)
    check_share: float = Field(default=0.02, ge=0, le=1)
    dtype: Dtype = "float32"
    device: Device = "cpu"
    threads: int = Field(default=1, ge=1)
    seed: int = 0
    command: str = ""

    @property
    def seconds(self) -> float:
        """Duration of the run."""
        return 60 * self.minutes

    @property
    def budget_bytes(self) -> int:
        """Budget of the cache."""
        return round(self.cache_mib * 1024**2)

    @property
    def measured_pid(self) -> int:
        """The process whose memory is read: this one, unless a server scores."""
        return self.pid if self.url else os.getpid()


class Soaked(Protocol):
    """Scorer under test, here or behind a URL."""

    def score(self, requests: Sequence[ScoreRequest]) -> list[ScoreResult]:
        """Q of each candidate of each request."""
        ...

    @property
    def cache(self) -> CacheUse:
        """Current state of its cache."""
        ...


def run_soak(
    soak: Soak,
    soaked: Soaked,
    reference: Scorer,
    renderer: Renderer,
    *,
    context: int,
    advance: Advance = lambda _: None,
    clock: Callable[[], float] = time.monotonic,
) -> SoakRun:
    """Score until the time is up; a broken promise is counted, and the run goes on.

    Args:
        context: most tokens of a sequence.
        advance: told the seconds that are over.
        clock: seconds that never go back.
    """
    rng = Random(soak.seed)
    words = _task_words(renderer, context, rng)
    tasks = [_text(rng, words) for _ in range(_TASKS)]
    sessions = [_Session(tasks, words, rng) for _ in range(soak.sessions)]
    tally = _Tally(soak, clock)
    while (elapsed_s := tally.elapsed_s) < soak.seconds:
        advance(elapsed_s)
        chosen = rng.sample(sessions, min(soak.batch, len(sessions)))
        requests = [s.next_request(renderer, soak.candidates, context) for s in chosen]
        results = soaked.score(requests)
        tally.count(results, soaked.cache)
        if rng.random() < soak.check_share or not tally.checks:
            which = rng.randrange(len(requests))
            [expected] = reference.score([requests[which]])
            tally.compare(results[which].q_values, expected.q_values)
        for session, result in zip(chosen, results, strict=True):
            session.go_on(result)
    return tally.run()


class _Session:
    """One conversation, and what is asked about it next."""

    def __init__(self, tasks: Sequence[str], words: int, rng: Random) -> None:
        self._tasks = tasks
        self._words = words
        self._rng = rng
        self._history: tuple[Message, ...] = ()
        self._candidates: tuple[Message, ...] = ()
        self._begin()

    def next_request(self, renderer: Renderer, candidates: int, context: int) -> ScoreRequest:
        """The state with new candidates; a state that leaves them no room is left for a new one."""
        self._candidates = self._draw(candidates)
        longest = max(len(renderer.encode_candidate(c)) for c in self._candidates)
        if len(renderer.encode_history(self._history)) + longest > context:
            self._begin()
        return ScoreRequest(self._history, self._candidates)

    def go_on(self, result: ScoreResult) -> None:
        """Take the best action and observe something."""
        best = max(range(len(result.q_values)), key=result.q_values.__getitem__)
        seen = Message("user", _text(self._rng, self._rng.randint(10, 30)))
        self._history = (*self._history, self._candidates[best], seen)

    def _draw(self, candidates: int) -> tuple[Message, ...]:
        """All different, because a server refuses a request that repeats one."""
        texts: dict[str, None] = {}
        while len(texts) < candidates:
            texts[_text(self._rng, self._rng.randint(4, 16))] = None
        return tuple(Message("assistant", text) for text in texts)

    def _begin(self) -> None:
        shared = self._rng.random() < 0.5
        task = self._rng.choice(self._tasks) if shared else _text(self._rng, self._words)
        self._history = (Message("user", task),)


class _Tally:
    """Figures of a run so far."""

    def __init__(self, soak: Soak, clock: Callable[[], float]) -> None:
        self._soak = soak
        self._clock = clock
        self._started = clock()
        self._interval_s = max(_SHORTEST_INTERVAL_S, soak.seconds / _SAMPLES)
        self._samples: list[SoakSample] = []
        self._calls = self._requests = self._computed = self._cached = 0
        self._largest = self._largest_since = self._over_budget = self._evictions = 0
        self.checks = 0
        self._failed_checks = 0
        self._difference = 0.0

    @property
    def elapsed_s(self) -> float:
        return self._clock() - self._started

    def count(self, results: Sequence[ScoreResult], cache: CacheUse) -> None:
        """Add a call and what the cache holds after it."""
        self._calls += 1
        self._requests += len(results)
        self._computed += sum(result.computed_tokens for result in results)
        self._cached += sum(result.cached_tokens for result in results)
        self._over_budget += cache.nbytes > self._soak.budget_bytes
        self._largest_since = max(self._largest_since, cache.nbytes)
        self._largest = max(self._largest, cache.nbytes)
        self._evictions = cache.evictions
        now = self.elapsed_s
        if not self._samples or now - self._samples[-1].at_s >= self._interval_s:
            rss = resident_bytes(self._soak.measured_pid) if self._soak.measured_pid else None
            self._samples.append(
                SoakSample(
                    at_s=now,
                    cache_bytes=self._largest_since,
                    rss_bytes=rss,
                    evictions=self._evictions,
                    requests=self._requests,
                )
            )
            self._largest_since = 0

    def compare(self, found: Sequence[float], expected: Sequence[float]) -> None:
        """Hold Q against the reference's; one that is no number has failed."""
        scale = max(1.0, *map(abs, expected))
        difference = largest_difference(found, expected)
        self.checks += 1
        self._failed_checks += not difference <= TOLERANCES[self._soak.dtype] * scale
        self._difference = max(self._difference, difference)

    def run(self) -> SoakRun:
        """All of it."""
        soak = self._soak
        return SoakRun(
            command=soak.command,
            sessions=soak.sessions,
            candidates=soak.candidates,
            batch=soak.batch,
            dtype=soak.dtype,
            seed=soak.seed,
            seconds=self.elapsed_s,
            budget_bytes=soak.budget_bytes,
            calls=self._calls,
            requests=self._requests,
            computed_tokens=self._computed,
            cached_tokens=self._cached,
            evictions=self._evictions,
            largest_cache_bytes=self._largest,
            calls_over_budget=self._over_budget,
            checks=self.checks,
            failed_checks=self._failed_checks,
            max_q_difference=self._difference,
            tolerance=TOLERANCES[soak.dtype],
            samples=tuple(self._samples),
        )


def resident_bytes(pid: int) -> int:
    """The resident memory of a process.

    Raises:
        ConfigError: there is no such process, or this system does not tell.
    """
    try:
        return psutil.Process(pid).memory_info().rss
    except psutil.Error as error:
        raise ConfigError(
            f"process {pid}: its memory cannot be read ({error}); name another with --pid, or 0 "
            "to leave it out"
        ) from error


def _task_words(renderer: Renderer, context: int, rng: Random) -> int:
    """So many that a task takes a quarter of the context at most: sessions have to grow."""
    words = _MOST_TASK_WORDS
    while len(renderer.encode_history((Message("user", _text(rng, words)),))) > context // 4:
        words //= 2
    return words


def _text(rng: Random, words: int) -> str:
    return " ".join(rng.choice(_WORDS) for _ in range(words))

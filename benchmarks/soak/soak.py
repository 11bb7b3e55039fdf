"""Soak test of a scorer: memory within its budget and Q correct while sessions grow.

Every session is a conversation of random words in which the best candidate becomes the action. A
session that fills the context starts again, half of the time with a task that others share. After
every call the cache is compared with its budget, and after some of them the Q of one request with
that of `NaiveScorer`.
"""

import os
import time
from collections.abc import Callable, Sequence
from random import Random
from typing import Protocol

import psutil
from pydantic import Field

from benchmarks.measurement.measure import TOLERANCES, largest_difference
from benchmarks.measurement.options import EMBEDDED, BenchOptions, Device, Dtype, OutputFile
from benchmarks.measurement.records import SoakRun, SoakSample
from qguide.qnet.errors import ConfigError
from qguide.qnet.rendering.renderer import Renderer
from qguide.qnet.sliced_scorer import CacheUse
from qguide.qnet.types import Message, Scorer, ScoreRequest, ScoreResult

_WORDS = ("you", "see", "open", "cabinet", "drawer", "plate", "mug", "apple", "take", "go", "to")
_TASKS = 8
_MOST_TASK_WORDS = 200
_SAMPLES = 600
_SHORTEST_INTERVAL_S = 0.1

OnProgress = Callable[[float], None]


class Soak(BenchOptions):
    """Options of `python -m benchmarks soak`.

    Attributes:
        output: JSON file; the plot is written beside it.
        sessions: number of concurrent conversations.
        minutes: duration of the run.
        q_model: "embedded", or a checkpoint folder.
        cache_mib: budget of the cache.
        url: a server with this Q model; "" scores in this process.
        pid: process id of the server, to measure its memory; 0 does not measure it.
        candidates: M.
        batch: number of sessions scored in one call.
        check_share: share of calls after which one request is compared with the reference.
        dtype: data type of weights and activations.
        device: "cpu" or "cuda".
        threads: number of torch threads.
        seed: seed of the conversations.
        command: the command line.
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
        """Process whose memory is measured: this one, unless a server scores."""
        return self.pid if self.url else os.getpid()


class ScorerUnderTest(Protocol):
    """Scorer under test, in this process or behind a URL."""

    def score(self, requests: Sequence[ScoreRequest]) -> list[ScoreResult]:
        """Score each candidate of each request."""
        ...

    @property
    def cache(self) -> CacheUse:
        """Current use of its cache."""
        ...


def run_soak(
    soak: Soak,
    scorer: ScorerUnderTest,
    reference: Scorer,
    renderer: Renderer,
    *,
    context: int,
    on_progress: OnProgress = lambda _: None,
    clock: Callable[[], float] = time.monotonic,
) -> SoakRun:
    """Score until the time is up; failed checks are counted and do not end the run.

    Args:
        context: context length in tokens.
        on_progress: progress callback; gets the elapsed seconds.
        clock: monotonic clock in seconds.
    """
    rng = Random(soak.seed)
    words = _task_words(renderer, context, rng)
    tasks = [_text(rng, words) for _ in range(_TASKS)]
    sessions = [_Session(tasks, words, rng) for _ in range(soak.sessions)]
    tally = _Tally(soak, clock)
    while (elapsed_s := tally.elapsed_s) < soak.seconds:
        on_progress(elapsed_s)
        chosen = rng.sample(sessions, min(soak.batch, len(sessions)))
        requests = [s.next_request(renderer, soak.candidates, context) for s in chosen]
        results = scorer.score(requests)
        tally.count(results, scorer.cache)
        if rng.random() < soak.check_share or not tally.checks:
            which = rng.randrange(len(requests))
            [expected] = reference.score([requests[which]])
            tally.compare(results[which].q_values, expected.q_values)
        for session, result in zip(chosen, results, strict=True):
            session.go_on(result)
    return tally.run()


class _Session:
    """One growing conversation and its next request."""

    def __init__(self, tasks: Sequence[str], words: int, rng: Random) -> None:
        self._tasks = tasks
        self._words = words
        self._rng = rng
        self._history: tuple[Message, ...] = ()
        self._candidates: tuple[Message, ...] = ()
        self._begin()

    def next_request(self, renderer: Renderer, candidates: int, context: int) -> ScoreRequest:
        """Draw new candidates for the state; start a new conversation if they do not fit."""
        self._candidates = self._draw(candidates)
        longest = max(len(renderer.encode_candidate(c)) for c in self._candidates)
        if len(renderer.encode_history(self._history)) + longest > context:
            self._begin()
        return ScoreRequest(self._history, self._candidates)

    def go_on(self, result: ScoreResult) -> None:
        """Append the best candidate and a random observation."""
        best = max(range(len(result.q_values)), key=result.q_values.__getitem__)
        seen = Message("user", _text(self._rng, self._rng.randint(10, 30)))
        self._history = (*self._history, self._candidates[best], seen)

    def _draw(self, candidates: int) -> tuple[Message, ...]:
        """Distinct candidates, because a server refuses repeated ones."""
        texts: dict[str, None] = {}
        while len(texts) < candidates:
            texts[_text(self._rng, self._rng.randint(4, 16))] = None
        return tuple(Message("assistant", text) for text in texts)

    def _begin(self) -> None:
        shared = self._rng.random() < 0.5
        task = self._rng.choice(self._tasks) if shared else _text(self._rng, self._words)
        self._history = (Message("user", task),)


class _Tally:
    """Running totals of a soak test."""

    def __init__(self, soak: Soak, clock: Callable[[], float]) -> None:
        self._soak = soak
        self._clock = clock
        self._started = clock()
        self._interval_s = max(_SHORTEST_INTERVAL_S, soak.seconds / _SAMPLES)
        self._samples: list[SoakSample] = []
        self._calls = self._requests = self._computed = self._cached = 0
        self._largest = self._peak_since_last_sample = self._over_budget = self._evictions = 0
        self.checks = 0
        self._failed_checks = 0
        self._difference = 0.0

    @property
    def elapsed_s(self) -> float:
        return self._clock() - self._started

    def count(self, results: Sequence[ScoreResult], cache: CacheUse) -> None:
        """Add a call and the state of the cache after it."""
        self._calls += 1
        self._requests += len(results)
        self._computed += sum(result.computed_tokens for result in results)
        self._cached += sum(result.cached_tokens for result in results)
        self._over_budget += cache.nbytes > self._soak.budget_bytes
        self._peak_since_last_sample = max(self._peak_since_last_sample, cache.nbytes)
        self._largest = max(self._largest, cache.nbytes)
        self._evictions = cache.evictions
        now = self.elapsed_s
        if not self._samples or now - self._samples[-1].at_s >= self._interval_s:
            rss = resident_bytes(self._soak.measured_pid) if self._soak.measured_pid else None
            self._samples.append(
                SoakSample(
                    at_s=now,
                    cache_bytes=self._peak_since_last_sample,
                    rss_bytes=rss,
                    evictions=self._evictions,
                    requests=self._requests,
                )
            )
            self._peak_since_last_sample = 0

    def compare(self, found: Sequence[float], expected: Sequence[float]) -> None:
        """Compare Q with the reference's; NaN counts as a failure."""
        scale = max(1.0, *map(abs, expected))
        difference = largest_difference(found, expected)
        self.checks += 1
        self._failed_checks += not difference <= TOLERANCES[self._soak.dtype] * scale
        self._difference = max(self._difference, difference)

    def run(self) -> SoakRun:
        """The record of the run."""
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
    """Resident memory of a process.

    Raises:
        ConfigError: there is no such process, or its memory cannot be read.
    """
    try:
        return psutil.Process(pid).memory_info().rss
    except psutil.Error as error:
        raise ConfigError(
            f"the memory of process {pid} cannot be read ({error}); pass another --pid, or 0 to skip it"
        ) from error


def _task_words(renderer: Renderer, context: int, rng: Random) -> int:
    """Number of words of a task, at most a quarter of the context, so that sessions can grow."""
    words = _MOST_TASK_WORDS
    while len(renderer.encode_history((Message("user", _text(rng, words)),))) > context // 4:
        words //= 2
    return words


def _text(rng: Random, words: int) -> str:
    return " ".join(rng.choice(_WORDS) for _ in range(words))

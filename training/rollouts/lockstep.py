"""Driver of rollout tasks for models in this process: many episodes in step, answered in batches.

All tasks that wait for the policy are answered with one `sample_batch`, and all that wait for the
scorer with one `score`.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field, replace
from time import perf_counter
from typing import Generic, TypeVar

from qguide.qnet.errors import ConfigError, QGuideError
from qguide.qnet.types import (
    BatchPolicy,
    Candidate,
    SampleRequest,
    Scorer,
    ScoreRequest,
    ScoreResult,
)
from qguide.training.rollouts.rollout import (
    Answer,
    EnvironmentCall,
    ModelRequest,
    RolloutTask,
    SampleRequests,
    Timings,
    TimingsRequest,
    answer_all,
    call,
    draws_of,
    gathered,
    resume,
)

T = TypeVar("T")


def run_rollouts(
    tasks: Iterable[tuple[str, RolloutTask[T]]],
    *,
    policy: BatchPolicy | None = None,
    scorer: Scorer | None = None,
    parallel: int,
    environment_threads: int = 0,
    on_done: Callable[[str, T, Timings], None],
    on_failure: Callable[[str, QGuideError], None],
) -> None:
    """Run every task to its end, up to `parallel` of them at the same time.

    Args:
        tasks: (name, task) pairs, taken one by one as others finish.
        parallel: maximum number of tasks running at the same time.
        environment_threads: number of environment calls that run in parallel; 0 runs them inline,
            which is right for engines that take microseconds.
        on_done: called with a task's name, result and cost.
        on_failure: called with a task's name and the `QGuideError` that it raised; the other tasks
            continue. Any other exception is a bug and ends the run.
    """
    if parallel < 1:
        raise ConfigError(f"parallel is {parallel}; set it to 1 or more")
    rounds = _Rounds(policy, scorer, environment_threads, on_done, on_failure)
    rounds.run(iter(tasks), parallel)


def run_together(
    tasks: Sequence[RolloutTask[T]], *, policy: BatchPolicy, scorer: Scorer | None = None
) -> list[T]:
    """Run all tasks at the same time, and return their results in order."""
    results: dict[int, T] = {}

    def on_failure(name: str, error: QGuideError) -> None:
        raise error

    if tasks:
        run_rollouts(
            ((str(number), task) for number, task in enumerate(tasks)),
            policy=policy,
            scorer=scorer,
            parallel=len(tasks),
            on_done=lambda name, result, _: results.__setitem__(int(name), result),
            on_failure=on_failure,
        )
    return [results[number] for number in range(len(tasks))]


@dataclass(slots=True, eq=False)
class _Running(Generic[T]):
    name: str
    task: RolloutTask[T]
    spent: Timings = field(default_factory=Timings)


class _Rounds(Generic[T]):
    """The running tasks, queued by what they wait for: a draw, a score or an environment."""

    def __init__(
        self,
        policy: BatchPolicy | None,
        scorer: Scorer | None,
        environment_threads: int,
        on_done: Callable[[str, T, Timings], None],
        on_failure: Callable[[str, QGuideError], None],
    ) -> None:
        self._policy = policy
        self._scorer = scorer
        self._on_done = on_done
        self._on_failure = on_failure
        self._running: set[_Running[T]] = set()
        self._sampling: list[tuple[_Running[T], SampleRequest | SampleRequests]] = []
        self._scoring: list[tuple[_Running[T], ScoreRequest]] = []
        self._acting: dict[Future[tuple[Answer, float]], _Running[T]] = {}
        self._pool = ThreadPoolExecutor(environment_threads) if environment_threads else None

    def run(self, tasks: Iterator[tuple[str, RolloutTask[T]]], parallel: int) -> None:
        try:
            while self._start(tasks, parallel):
                self._answer_samples()
                self._answer_scores()
                self._answer_actions()
        finally:
            if self._pool is not None:
                self._pool.shutdown(cancel_futures=True)
            for running in self._running:
                running.task.close()

    def _start(self, tasks: Iterator[tuple[str, RolloutTask[T]]], parallel: int) -> bool:
        """Start tasks up to `parallel`; return False once all are finished."""
        while len(self._running) < parallel:
            following = next(tasks, None)
            if following is None:
                break
            running = _Running(*following)
            self._running.add(running)
            self._advance(running, Answer())
        return bool(self._running)

    def _advance(self, running: _Running[T], answer: Answer) -> None:
        """Run a task until it waits for a batch or a thread."""
        waits = False
        while not waits:
            try:
                request = resume(running.task, answer)
            except StopIteration as end:
                self._running.remove(running)
                self._on_done(running.name, end.value, running.spent)
                return
            except QGuideError as error:
                self._running.remove(running)
                self._on_failure(running.name, error)
                return
            if isinstance(request, TimingsRequest):
                answer = Answer(replace(running.spent))
            elif isinstance(request, EnvironmentCall) and self._pool is None:
                answer, seconds = call(request)
                running.spent.environment_s += seconds
            else:
                self._enqueue(running, request)
                waits = True

    def _enqueue(self, running: _Running[T], request: ModelRequest | EnvironmentCall) -> None:
        match request:
            case SampleRequest() | SampleRequests():
                self._sampling.append((running, request))
            case ScoreRequest():
                self._scoring.append((running, request))
            case EnvironmentCall():
                assert self._pool is not None
                self._acting[self._pool.submit(call, request)] = running

    def _answer_samples(self) -> None:
        waiting, self._sampling = self._sampling, []
        if not waiting:
            return
        if self._policy is None:
            raise ConfigError("a task needs candidates, but the run has no policy; name one")
        start = perf_counter()
        requests = [draws_of(request) for _, request in waiting]
        each = iter(answer_all([r for own in requests for r in own], self._policy.sample_batch))
        answers = [
            gathered(request, [next(each) for _ in own])
            for (_, request), own in zip(waiting, requests, strict=True)
        ]
        shares = _shares(perf_counter() - start, [_generated_tokens(a) for a in answers])
        for (running, _), answer, share in zip(waiting, answers, shares, strict=True):
            running.spent.policy_s += share
            self._advance(running, answer)

    def _answer_scores(self) -> None:
        waiting, self._scoring = self._scoring, []
        if not waiting:
            return
        if self._scorer is None:
            raise ConfigError("a task needs Q-values, but the run has no scorer; name a Q model")
        start = perf_counter()
        answers = answer_all([request for _, request in waiting], self._scorer.score)
        shares = _shares(perf_counter() - start, [_computed_tokens(a) for a in answers])
        for (running, _), answer, share in zip(waiting, answers, shares, strict=True):
            running.spent.scorer_s += share
            self._advance(running, answer)

    def _answer_actions(self) -> None:
        """Answer finished environment calls; wait for one only if nothing else can proceed."""
        if not self._acting:
            return
        idle = not self._sampling and not self._scoring
        done, _ = wait(self._acting, None if idle else 0, return_when=FIRST_COMPLETED)
        for future in done:
            running = self._acting.pop(future)
            answer, seconds = future.result()
            running.spent.environment_s += seconds
            self._advance(running, answer)


def _generated_tokens(answer: Answer) -> int:
    drawn: list[Candidate] | list[list[Candidate]] = answer.value or []
    candidates = [c for each in drawn for c in (each if isinstance(each, list) else [each])]
    return sum(candidate.completion_tokens for candidate in candidates)


def _computed_tokens(answer: Answer) -> int:
    result: ScoreResult | None = answer.value
    return result.computed_tokens if result is not None else 0


def _shares(seconds: float, tokens: Sequence[int]) -> list[float]:
    total = sum(tokens)
    if not total:
        return [seconds / len(tokens)] * len(tokens)
    return [seconds * count / total for count in tokens]

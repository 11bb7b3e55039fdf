"""Many episodes at once with one policy: every process waits for what it needs, in batches.

A process is a generator. It yields what it needs and is sent the answer:

    candidates = yield SampleRequest(history, n, sampling)      list[Candidate]
    several = yield SampleRequests((request, request))          list[list[Candidate]]
    result = yield ScoreRequest(history, messages)              ScoreResult
    value = yield EnvironmentCall(lambda: environment.step(a))  what the function returned
    spent = yield TimingsRequest()                              Timings

`run_rollouts` keeps many of them alive and answers all that wait for the policy in one
`sample_batch` and all that wait for the scorer in one `score`. A need that cannot be met is
raised inside the process that asked, so it can be caught there.
"""

from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field, replace
from time import perf_counter
from typing import Any, Generic, TypeVar

from qnet.errors import ConfigError, QGuideError
from qnet.types import BatchPolicy, Candidate, SampleRequest, Scorer, ScoreRequest, ScoreResult

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class EnvironmentCall:
    """Something to do in an environment: slow in some engines, so it may run in a thread."""

    function: Callable[[], Any]


@dataclass(frozen=True, slots=True)
class TimingsRequest:
    """Asks what the process has cost so far; the answer is a copy of its `Timings`."""


@dataclass(frozen=True, slots=True)
class SampleRequests:
    """Several draws at once, for example at two temperatures after one history.

    They share a batch, and a policy that keeps prefixes reads a common history once.
    """

    requests: tuple[SampleRequest, ...]


ModelRequest = SampleRequest | SampleRequests | ScoreRequest
RolloutRequest = ModelRequest | EnvironmentCall | TimingsRequest
RolloutTask = Generator[RolloutRequest, Any, T]


@dataclass(slots=True)
class Timings:
    """Seconds that a process cost.

    A batched call's time is shared out by tokens: sampling by the tokens generated for each
    request, scoring by the tokens that went through the trunk. Environment calls are timed
    one by one; in threads they overlap, so their sum may exceed the clock on the wall.
    """

    policy_s: float = 0.0
    scorer_s: float = 0.0
    environment_s: float = 0.0

    @property
    def total_s(self) -> float:
        """All of it."""
        return self.policy_s + self.scorer_s + self.environment_s

    def since(self, before: "Timings") -> "Timings":
        """What was spent after `before` was taken."""
        return Timings(
            self.policy_s - before.policy_s,
            self.scorer_s - before.scorer_s,
            self.environment_s - before.environment_s,
        )


def run_rollouts(
    processes: Iterable[tuple[str, RolloutTask[T]]],
    *,
    policy: BatchPolicy | None = None,
    scorer: Scorer | None = None,
    parallel: int,
    environment_threads: int = 0,
    on_done: Callable[[str, T, Timings], None],
    on_failure: Callable[[str, QGuideError], None],
) -> None:
    """Run every process to its end, up to `parallel` at the same time.

    Args:
        processes: (name, process), the name being the task's id or what else a report
            needs; taken one by one as places become free.
        policy: answers the sample requests; an expert's episodes make none.
        scorer: answers the score requests, if any process makes them.
        parallel: most processes alive at the same time.
        environment_threads: how many environment calls run beside each other; 0 runs them
            inline, which is right for engines that take microseconds.
        on_done: gets the name, what the process returned and what it cost.
        on_failure: gets the name and the error of a process that raised a `QGuideError`;
            the others go on. Any other exception is a bug and ends the run.
    """
    if parallel < 1:
        raise ConfigError(f"parallel is {parallel}; at least one episode must be played at a time")
    rounds = _Rounds(policy, scorer, environment_threads, on_done, on_failure)
    rounds.run(iter(processes), parallel)


def run_together(
    tasks: Sequence[RolloutTask[T]], *, policy: BatchPolicy, scorer: Scorer | None = None
) -> list[T]:
    """What each task returns, in order; all run at the same time, in batches.

    Raises:
        QGuideError: of the first task that failed.
    """
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
class _Alive(Generic[T]):
    name: str
    process: RolloutTask[T]
    spent: Timings = field(default_factory=Timings)


@dataclass(frozen=True, slots=True)
class _Answer:
    value: Any = None
    error: QGuideError | None = None


class _Rounds(Generic[T]):
    """Who is alive, and what each of them waits for."""

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
        self._alive: set[_Alive[T]] = set()
        self._sampling: list[tuple[_Alive[T], SampleRequest | SampleRequests]] = []
        self._scoring: list[tuple[_Alive[T], ScoreRequest]] = []
        self._acting: dict[Future[tuple[_Answer, float]], _Alive[T]] = {}
        self._pool = ThreadPoolExecutor(environment_threads) if environment_threads else None

    def run(self, processes: Iterator[tuple[str, RolloutTask[T]]], parallel: int) -> None:
        try:
            while self._start(processes, parallel):
                self._answer_samples()
                self._answer_scores()
                self._answer_actions()
        finally:
            if self._pool is not None:
                self._pool.shutdown(cancel_futures=True)
            for alive in self._alive:
                alive.process.close()

    def _start(self, processes: Iterator[tuple[str, RolloutTask[T]]], parallel: int) -> bool:
        """Fill the free places; False once nothing is alive and nothing is left."""
        while len(self._alive) < parallel:
            following = next(processes, None)
            if following is None:
                break
            alive = _Alive(*following)
            self._alive.add(alive)
            self._advance(alive, _Answer())
        return bool(self._alive)

    def _advance(self, alive: _Alive[T], answer: _Answer) -> None:
        """Let a process run until it waits for something that is not there at once."""
        waits = False
        while not waits:
            try:
                need = _resume(alive.process, answer)
            except StopIteration as end:
                self._alive.remove(alive)
                self._on_done(alive.name, end.value, alive.spent)
                return
            except QGuideError as error:
                self._alive.remove(alive)
                self._on_failure(alive.name, error)
                return
            if isinstance(need, TimingsRequest):
                answer = _Answer(replace(alive.spent))
            elif isinstance(need, EnvironmentCall) and self._pool is None:
                answer, seconds = _call(need)
                alive.spent.environment_s += seconds
            else:
                self._enqueue(alive, need)
                waits = True

    def _enqueue(self, alive: _Alive[T], need: ModelRequest | EnvironmentCall) -> None:
        match need:
            case SampleRequest() | SampleRequests():
                self._sampling.append((alive, need))
            case ScoreRequest():
                self._scoring.append((alive, need))
            case EnvironmentCall():
                assert self._pool is not None
                self._acting[self._pool.submit(_call, need)] = alive

    def _answer_samples(self) -> None:
        waiting, self._sampling = self._sampling, []
        if not waiting:
            return
        if self._policy is None:
            raise ConfigError("a process asks for candidates, but the run has no policy; name one")
        start = perf_counter()
        requests = [_requests(need) for _, need in waiting]
        each = iter(_answer_all([r for own in requests for r in own], self._policy.sample_batch))
        answers = [
            _gathered(need, [next(each) for _ in own])
            for (_, need), own in zip(waiting, requests, strict=True)
        ]
        shares = _shares(perf_counter() - start, [_generated_tokens(a) for a in answers])
        for (alive, _), answer, share in zip(waiting, answers, shares, strict=True):
            alive.spent.policy_s += share
            self._advance(alive, answer)

    def _answer_scores(self) -> None:
        waiting, self._scoring = self._scoring, []
        if not waiting:
            return
        if self._scorer is None:
            raise ConfigError("a process asks for Q-values, but the run has no scorer; name a QNet")
        start = perf_counter()
        answers = _answer_all([request for _, request in waiting], self._scorer.score)
        shares = _shares(perf_counter() - start, [_computed_tokens(a) for a in answers])
        for (alive, _), answer, share in zip(waiting, answers, shares, strict=True):
            alive.spent.scorer_s += share
            self._advance(alive, answer)

    def _answer_actions(self) -> None:
        """Hand on what the environments have done; wait for one only if nothing else is left."""
        if not self._acting:
            return
        idle = not self._sampling and not self._scoring
        done, _ = wait(self._acting, None if idle else 0, return_when=FIRST_COMPLETED)
        for future in done:
            alive = self._acting.pop(future)
            answer, seconds = future.result()
            alive.spent.environment_s += seconds
            self._advance(alive, answer)


def _resume(process: RolloutTask[T], answer: _Answer) -> RolloutRequest:
    return process.send(answer.value) if answer.error is None else process.throw(answer.error)


def _call(need: EnvironmentCall) -> tuple[_Answer, float]:
    start = perf_counter()
    try:
        answer = _Answer(need.function())
    except QGuideError as error:
        answer = _Answer(error=error)
    return answer, perf_counter() - start


R = TypeVar("R", SampleRequest, ScoreRequest)


def _answer_all(
    requests: Sequence[R], model: Callable[[Sequence[R]], Sequence[Any]]
) -> list[_Answer]:
    """One batched call; where a request spoils it, one call each, to find whose fault it is."""
    try:
        return [_Answer(value) for value in model(requests)]
    except QGuideError as error:
        if len(requests) == 1:
            return [_Answer(error=error)]
    return [answer for request in requests for answer in _answer_all([request], model)]


def _requests(need: SampleRequest | SampleRequests) -> tuple[SampleRequest, ...]:
    return need.requests if isinstance(need, SampleRequests) else (need,)


def _gathered(need: SampleRequest | SampleRequests, answers: Sequence[_Answer]) -> _Answer:
    """One answer to all that a process asked for at once; the first error is that of all."""
    if isinstance(need, SampleRequest):
        return answers[0]
    error = next((answer.error for answer in answers if answer.error is not None), None)
    return _Answer(None if error else [answer.value for answer in answers], error)


def _generated_tokens(answer: _Answer) -> int:
    drawn: list[Candidate] | list[list[Candidate]] = answer.value or []
    candidates = [c for each in drawn for c in (each if isinstance(each, list) else [each])]
    return sum(candidate.completion_tokens for candidate in candidates)


def _computed_tokens(answer: _Answer) -> int:
    result: ScoreResult | None = answer.value
    return result.computed_tokens if result is not None else 0


def _shares(seconds: float, tokens: Sequence[int]) -> list[float]:
    total = sum(tokens)
    if not total:
        return [seconds / len(tokens)] * len(tokens)
    return [seconds * count / total for count in tokens]

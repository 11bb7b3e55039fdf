"""Rounds of rollout tasks: what waits for one model is answered as one batch, round by round."""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from queue import SimpleQueue
from time import perf_counter
from typing import Any, Generic, TypeVar

from qguide.qnet.errors import ConfigError, QGuideError
from qguide.qnet.types import SampleRequest, ScoreRequest
from qguide.training.rollouts.hosted import UsageTally
from qguide.training.rollouts.rollout import (
    Answer,
    EnvironmentCall,
    ModelRequest,
    RolloutTask,
    TaskTimings,
    TimingsRequest,
    answer_all,
    call,
    draws_of,
    gathered,
    resume,
)
from qguide.training.rollouts.usage import UpstreamUsage

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Reports(Generic[T]):
    """Functions to call when a task is done, when it has failed, and when it has ended anyhow."""

    done: Callable[[str, T, TaskTimings], None]
    failed: Callable[[str, QGuideError], None]
    used: Callable[[str, UpstreamUsage], None]


@dataclass(slots=True, eq=False)
class Running(Generic[T]):
    """A task that has begun, and what it has cost."""

    name: str
    task: RolloutTask[T]
    spent: TaskTimings = field(default_factory=TaskTimings)
    tally: UsageTally = field(default_factory=UsageTally)


@dataclass(slots=True, eq=False)
class PendingRequest(Generic[T]):
    """A request to a model, and the answers to its draws, of which some may be missing yet."""

    running: Running[T]
    request: ModelRequest
    answers: list[Answer]
    missing: int
    since: float = field(default_factory=perf_counter)
    shares_s: float = 0.0


@dataclass(slots=True, eq=False)
class Batches(Generic[T]):
    """Requests that wait for one model of this process.

    Attributes:
        tokens: of an answer, by which the time of a batch is shared.
    """

    model: Callable[[Sequence[Any]], Sequence[Any]]
    tokens: Callable[[Any], int]
    waiting: list[tuple[PendingRequest[T], int, Any]] = field(default_factory=list)
    thread: ThreadPoolExecutor | None = None
    busy: bool = False


class Driver(Generic[T]):
    """The running tasks, by what they wait for: a batch, or work that is in flight elsewhere.

    Batches take turns in the caller's thread: policy, scorer, environments. The order decides which
    requests share a batch, and so the last digits of what they answer.
    """

    def __init__(
        self, draws: Batches[T] | None, scores: Batches[T] | None, pool: ThreadPoolExecutor | None, reports: Reports[T]
    ) -> None:
        self._draws, self._scores = draws, scores
        self._pool = pool
        self._reports = reports
        self._running: set[Running[T]] = set()
        self._in_flight: dict[Any, Callable[[Any], None]] = {}
        self._ended: SimpleQueue[Any] = SimpleQueue()

    def run(self, tasks: Iterator[tuple[str, RolloutTask[T]]], parallel: int) -> None:
        """Run in rounds: the draws that wait, the scores that wait, then environments."""
        try:
            while self._round(tasks, parallel):
                idle = not any(batches.waiting for batches in self._models())
                if idle and self._in_flight:
                    self._take(self._ended.get())
                self._take_ended()
        finally:
            self._close()

    def _models(self) -> list[Batches[T]]:
        return [batches for batches in (self._draws, self._scores) if batches is not None]

    def _round(self, tasks: Iterator[tuple[str, RolloutTask[T]]], parallel: int) -> bool:
        while len(self._running) < parallel:
            following = next(tasks, None)
            if following is None:
                break
            running = Running(*following)
            self._running.add(running)
            self._advance(running, Answer())
        if not self._running:
            return False
        for batches in self._models():
            if batches.waiting:
                self._answer_batch(batches)
        return True

    def _advance(self, running: Running[T], answer: Answer) -> None:
        while True:
            try:
                request = resume(running.task, answer)
            except StopIteration as end:
                self._running.remove(running)
                self._reports.done(running.name, end.value, running.spent)
                self._reports.used(running.name, running.tally.usage)
                return
            except QGuideError as error:
                self._running.remove(running)
                self._reports.failed(running.name, error)
                self._reports.used(running.name, running.tally.usage)
                return
            match request:
                case TimingsRequest():
                    answer = Answer(replace(running.spent))
                case EnvironmentCall() if self._pool is None:
                    answer, seconds = call(request)
                    running.spent.environment_s += seconds
                case EnvironmentCall():
                    assert self._pool is not None
                    self._launch(self._pool.submit(call, request), partial(self._acted, running))
                    return
                case _:
                    self._ask(running, request)
                    return

    def _ask(self, running: Running[T], request: ModelRequest) -> None:
        if isinstance(request, ScoreRequest):
            if self._scores is None:
                raise ConfigError("a task needs Q-values, but the run has no scorer; name a Q model")
            asked = PendingRequest(running, request, [Answer()], 1)
            self._scores.waiting.append((asked, 0, request))
        else:
            draws = draws_of(request)
            asked = PendingRequest(running, request, [Answer()] * len(draws), len(draws))
            self._draw(asked, list(enumerate(draws)))

    def _draw(self, asked: PendingRequest[T], draws: Sequence[tuple[int, SampleRequest]]) -> None:
        """Let numbered draws wait for a batch."""
        if self._draws is None:
            raise ConfigError("a task needs candidates, but the run has no policy; name one")
        self._draws.waiting += [(asked, number, draw) for number, draw in draws]

    def _answer_batch(self, batches: Batches[T]) -> None:
        waiting, batches.waiting = batches.waiting, []
        start = perf_counter()
        answers = answer_all([request for _, _, request in waiting], batches.model)
        seconds = perf_counter() - start
        self._hand_out(waiting, answers, _shares(seconds, [batches.tokens(a) for a in answers]))

    def _hand_out(
        self,
        waiting: Sequence[tuple[PendingRequest[T], int, Any]],
        answers: Sequence[Answer],
        shares_s: Sequence[float],
    ) -> None:
        """Give answers to what waits for them, and run the tasks that have all of theirs."""
        for (asked, number, _), answer, share_s in zip(waiting, answers, shares_s, strict=True):
            asked.answers[number] = answer
            asked.shares_s += share_s
            asked.missing -= 1
            if asked.missing:
                continue
            if isinstance(asked.request, ScoreRequest):
                asked.running.spent.scorer_s += self._seconds(asked)
            else:
                asked.running.spent.policy_s += self._seconds(asked)
            self._advance(asked.running, gathered(asked.request, asked.answers))

    def _seconds(self, asked: PendingRequest[T]) -> float:
        return asked.shares_s

    def _launch(self, work: Any, then: Callable[[Any], None]) -> None:
        """Call `then` with the result of a future when a round finds that it has ended."""
        self._in_flight[work] = then
        work.add_done_callback(self._report_end)

    def _report_end(self, work: Any) -> None:
        self._ended.put(work)

    def _take_ended(self) -> None:
        while not self._ended.empty():
            self._take(self._ended.get())

    def _take(self, work: Any) -> None:
        result = work.result()
        self._in_flight.pop(work)(result)

    def _acted(self, running: Running[T], acted: tuple[Answer, float]) -> None:
        answer, seconds = acted
        running.spent.environment_s += seconds
        self._advance(running, answer)

    def _close(self) -> None:
        if self._pool is not None:  # an environment is closed when no thread uses it any more
            self._pool.shutdown(cancel_futures=True)
        for running in self._running:
            running.task.close()
            self._reports.used(running.name, running.tally.usage)


def generated_tokens(answer: Answer) -> int:
    """Tokens of the candidates of a draw."""
    return sum(candidate.completion_tokens for candidate in answer.value or ())


def computed_tokens(answer: Answer) -> int:
    """Tokens that a score sent through the trunk."""
    return answer.value.computed_tokens if answer.value is not None else 0


def _shares(seconds: float, tokens: Sequence[int]) -> list[float]:
    total = sum(tokens)
    if not total:
        return [seconds / len(tokens)] * len(tokens)
    return [seconds * count / total for count in tokens]

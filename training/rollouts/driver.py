"""The driver of rollout tasks: many generators at the same time, whoever answers them.

A model of this process is asked in batches: all tasks that wait for the policy are answered with
one `sample_batch`, and all that wait for the scorer with one `score`. A hosted policy answers each
request on its own, so those are sent at once, and a task's next request when its last is answered.

Where nothing is hosted, batches take turns in the caller's thread: policy, scorer, environments.
The order decides which requests share a batch, and so the last digits of what they answer. Beside a
hosted policy a batch runs on a thread of its own, so that it keeps no answered task waiting.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import repeat
from queue import SimpleQueue
from time import perf_counter
from typing import Any, Generic, TypeVar

from anyio.from_thread import start_blocking_portal

from qguide.qnet.errors import ConfigError, QGuideError, UpstreamLostError
from qguide.qnet.types import BatchPolicy, SampleRequest, Scorer, ScoreRequest
from qguide.qnet.work import in_session
from qguide.training.data.runs import JsonlWriter, RunFolder
from qguide.training.rollouts.hosted import Draw, HostedPolicy
from qguide.training.rollouts.policies import JobPolicy, is_any_hosted, policies_of
from qguide.training.rollouts.rollout import (
    Answer,
    EnvironmentCall,
    ModelRequest,
    RolloutTask,
    SampleRequests,
    TaskTimings,
    TimingsRequest,
    answer_all,
    call,
    draws_of,
    gathered,
    resume,
)
from qguide.training.rollouts.usage import UpstreamUsage, recorded_usage

T = TypeVar("T")
Tasks = Iterable[tuple[str, RolloutTask[T]]]


def run_rollouts(
    tasks: Tasks[T],
    *,
    policy: JobPolicy | None = None,
    scorer: Scorer | None = None,
    parallel: int,
    environment_threads: int = 0,
    on_done: Callable[[str, T, TaskTimings], None],
    on_failure: Callable[[str, QGuideError], None],
    on_usage: Callable[[str, UpstreamUsage], None] = lambda name, usage: None,
) -> None:
    """Run every task to its end, up to `parallel` of them at the same time.

    Args:
        tasks: (name, task) pairs, taken one by one as others finish. The name is the session of
            all hosted requests that the task makes.
        environment_threads: number of environment calls that run in parallel; 0 runs them inline,
            which is right for engines that take microseconds.
        on_failure: called with a task's name and the `QGuideError` that it raised; the other tasks
            continue. Any other exception is a bug and ends the run.
        on_usage: called with a task's name and the usage of its hosted requests once it has ended
            for any reason.
    """
    if parallel < 1:
        raise ConfigError(f"parallel is {parallel}; set it to 1 or more")
    with ExitStack() as stack:
        driver = _Driver[T](stack, environment_threads, on_done, on_failure, on_usage)
        driver.connect(policy, scorer, stack)
        driver.run(iter(tasks), parallel)


def run_together(tasks: Sequence[RolloutTask[T]], *, policy: BatchPolicy, scorer: Scorer | None = None) -> list[T]:
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
    """A task that has begun, and what it has cost."""

    name: str
    task: RolloutTask[T]
    spent: TaskTimings = field(default_factory=TaskTimings)
    usage: UpstreamUsage = field(default_factory=UpstreamUsage)

    def spend(self, usage: UpstreamUsage) -> None:
        """Count what a hosted draw has cost."""
        self.usage += usage


@dataclass(slots=True, eq=False)
class _Asked(Generic[T]):
    """A request to a model, and the answers to its draws, of which some may be missing yet."""

    running: _Running[T]
    request: ModelRequest
    answers: list[Answer]
    missing: int
    since: float = field(default_factory=perf_counter)
    seconds: float = 0.0


_Part = tuple[_Asked[T], int, Any]
"""A request, the number of one of its draws, and what is asked of the model for it."""


@dataclass(slots=True, eq=False)
class _Batches(Generic[T]):
    """Requests that wait for one model of this process.

    Attributes:
        tokens: of an answer, by which the time of a batch is shared.
        thread: of its batches; None is the caller's.
    """

    model: Callable[[Sequence[Any]], Sequence[Any]]
    tokens: Callable[[Any], int]
    thread: ThreadPoolExecutor | None
    waiting: list[_Part[T]] = field(default_factory=list)
    busy: bool = False

    @property
    def ready(self) -> bool:
        """True if there is a batch that may run."""
        return bool(self.waiting) and not self.busy


Send = Callable[[_Running[Any], SampleRequest], Future[Answer] | None]
"""Sends a draw to a hosted policy; None for one of this process."""


class _Driver(Generic[T]):
    """The running tasks, by what they wait for: a batch, or work that is in flight elsewhere.

    What is in flight ends with the stack, and then the tasks that run are closed.
    """

    def __init__(
        self,
        stack: ExitStack,
        environment_threads: int,
        on_done: Callable[[str, T, TaskTimings], None],
        on_failure: Callable[[str, QGuideError], None],
        on_usage: Callable[[str, UpstreamUsage], None],
    ) -> None:
        self._on_done, self._on_failure, self._on_usage = on_done, on_failure, on_usage
        self._running: set[_Running[T]] = set()
        self._in_flight: dict[Future[Any], Callable[[Any], None]] = {}
        self._ended: SimpleQueue[Future[Any]] = SimpleQueue()
        self._draws: _Batches[T] | None = None
        self._scores: _Batches[T] | None = None
        self._send: Send | None = None
        stack.callback(self._close)  # last: a closed task closes its environment, which no thread may use any more
        self._pool = stack.enter_context(ThreadPoolExecutor(environment_threads)) if environment_threads else None

    def connect(self, policy: JobPolicy | None, scorer: Scorer | None, stack: ExitStack) -> None:
        """Connect the models, until the stack is closed."""
        hosted = is_any_hosted(policy)

        def batches(model: Callable[[Any], Sequence[Any]], tokens: Callable[[Answer], int]) -> _Batches[T]:
            return _Batches(model, tokens, stack.enter_context(ThreadPoolExecutor(1)) if hosted else None)

        if policy is not None and hosted:
            self._send = _sender(policy, stack)
        if not isinstance(policy, HostedPolicy | None):
            self._draws = batches(policy.sample_batch, _generated_tokens)
        if scorer is not None:
            self._scores = batches(scorer.score, _computed_tokens)

    def run(self, tasks: Iterator[tuple[str, RolloutTask[T]]], parallel: int) -> None:
        """Run in rounds: the draws that wait, the scores that wait, then environments and hosted draws."""
        models = [batches for batches in (self._draws, self._scores) if batches]
        try:
            while self._begin(tasks, parallel):
                for batches in models:
                    if batches.ready:
                        self._answer_batch(batches)
                if self._in_flight and not any(batches.ready for batches in models):
                    self._take(self._ended.get())
                while not self._ended.empty():
                    self._take(self._ended.get())
        finally:
            for work in self._in_flight:
                work.cancel()

    def _begin(self, tasks: Iterator[tuple[str, RolloutTask[T]]], parallel: int) -> bool:
        """Begin as many tasks as may run; False once all have ended."""
        while len(self._running) < parallel and (following := next(tasks, None)):
            running = _Running(*following)
            self._running.add(running)
            self._advance(running, Answer())
        return bool(self._running)

    def _advance(self, running: _Running[T], answer: Answer) -> None:
        while True:
            try:
                request = resume(running.task, answer)
            except StopIteration as end:
                self._running.remove(running)
                self._on_done(running.name, end.value, running.spent)
                self._on_usage(running.name, running.usage)
                return
            except QGuideError as error:
                self._running.remove(running)
                self._on_failure(running.name, error)
                self._on_usage(running.name, running.usage)
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
                case ScoreRequest():
                    self._score(running, request)
                    return
                case _:
                    self._draw(running, request)
                    return

    def _score(self, running: _Running[T], request: ScoreRequest) -> None:
        if self._scores is None:
            raise ConfigError("a task needs Q-values, but the run has no scorer; name a Q model")
        self._scores.waiting.append((_Asked(running, request, [Answer()], 1), 0, request))

    def _draw(self, running: _Running[T], request: SampleRequest | SampleRequests) -> None:
        draws = draws_of(request)
        asked = _Asked(running, request, [Answer()] * len(draws), len(draws))
        for part in ((asked, number, draw) for number, draw in enumerate(draws)):
            if self._send and (sent := self._send(running, part[2])):
                self._launch(sent, partial(self._drawn, part))
            elif self._draws is None:
                raise ConfigError("a task needs candidates, but the run has no policy; name one")
            else:
                self._draws.waiting.append(part)

    def _answer_batch(self, batches: _Batches[T]) -> None:
        waiting, batches.waiting = batches.waiting, []
        requests = [request for _, _, request in waiting]
        if batches.thread is not None:
            batches.busy = True
            work = batches.thread.submit(answer_all, requests, batches.model)
            self._launch(work, partial(self._answered, batches, waiting))
            return
        start = perf_counter()
        answers = answer_all(requests, batches.model)
        seconds = perf_counter() - start
        self._hand_out(waiting, answers, _shares(seconds, [batches.tokens(a) for a in answers]))

    def _answered(self, batches: _Batches[T], waiting: Sequence[_Part[T]], answers: Sequence[Answer]) -> None:
        batches.busy = False
        self._hand_out(waiting, answers)

    def _drawn(self, part: _Part[T], answer: Answer) -> None:
        self._hand_out([part], [answer])

    def _acted(self, running: _Running[T], acted: tuple[Answer, float]) -> None:
        answer, seconds = acted
        running.spent.environment_s += seconds
        self._advance(running, answer)

    def _hand_out(
        self, waiting: Sequence[_Part[T]], answers: Sequence[Answer], shares_s: Sequence[float] | None = None
    ) -> None:
        """Give answers to what waits for them, and run the tasks that have all of theirs.

        Args:
            shares_s: of a batch's time; None takes the time for which the task has waited.
        """
        for (asked, number, _), answer, share_s in zip(waiting, answers, shares_s or repeat(None), strict=False):
            asked.answers[number] = answer
            asked.seconds = perf_counter() - asked.since if share_s is None else asked.seconds + share_s
            asked.missing -= 1
            if asked.missing:
                continue
            if isinstance(asked.request, ScoreRequest):
                asked.running.spent.scorer_s += asked.seconds
            else:
                asked.running.spent.policy_s += asked.seconds
            self._advance(asked.running, gathered(asked.request, asked.answers))

    def _launch(self, work: Future[Any], then: Callable[[Any], None]) -> None:
        """Call `then` with the result of a future when a round finds that it has ended."""
        self._in_flight[work] = then
        work.add_done_callback(self._ended.put)

    def _take(self, work: Future[Any]) -> None:
        result = work.result()
        self._in_flight.pop(work)(result)

    def _close(self) -> None:
        for running in self._running:
            running.task.close()
            self._on_usage(running.name, running.usage)


def _sender(policy: JobPolicy, stack: ExitStack) -> Send:
    """Sends draws from an event loop on a thread of its own, connected until the stack is closed."""
    portal = stack.enter_context(start_blocking_portal())
    draws: dict[int, Draw] = {}  # by identity: a policy of one's own may have no hash
    for one in policies_of(policy):
        if isinstance(one, HostedPolicy) and id(one) not in draws:
            draws[id(one)] = stack.enter_context(portal.wrap_async_context_manager(one.connected()))
    act, rollouts = (draws.get(id(one)) for one in policies_of(policy))

    def send(running: _Running[Any], request: SampleRequest) -> Future[Answer] | None:
        draw = rollouts if request.role == "rollout" else act
        return portal.start_task_soon(_answer_of, draw, request, running) if draw else None

    return send


async def _answer_of(draw: Draw, request: SampleRequest, running: _Running[Any]) -> Answer:
    """The candidates as an answer; an error is the task's own, but for a lost upstream."""
    try:
        with in_session(running.name):
            return Answer(await draw(request, running.spend))
    except UpstreamLostError:
        raise
    except QGuideError as error:
        return Answer(error=error)


def _generated_tokens(answer: Answer) -> int:
    return sum(candidate.completion_tokens for candidate in answer.value or ())


def _computed_tokens(answer: Answer) -> int:
    return answer.value.computed_tokens if answer.value is not None else 0


def _shares(seconds: float, tokens: Sequence[int]) -> list[float]:
    total = sum(tokens)
    if not total:
        return [seconds / len(tokens)] * len(tokens)
    return [seconds * count / total for count in tokens]


class HostedRun:
    """The hosted part of a run."""

    def __init__(self, folder: RunFolder, metrics: JsonlWriter) -> None:
        self.usage = recorded_usage(folder.metrics)
        self._folder = folder
        self._metrics = metrics

    def play(self, tasks: Tasks[T], **how: Any) -> None:
        """Run every task to its end; see `run_rollouts`, which takes the same options."""
        try:
            run_rollouts(tasks, on_usage=self._add, **how)
        except UpstreamLostError as error:
            raise UpstreamLostError(
                f"{error}. What is finished is kept in {self._folder.path}; once the upstream "
                "answers again, run the same command again to resume"
            ) from error
        finally:
            self._metrics.write({"usage": self.usage.model_dump()})

    def _add(self, task_id: str, usage: UpstreamUsage) -> None:
        if usage.requests:
            self.usage += usage
            self._metrics.write({"task_id": task_id, "usage": usage.model_dump()})

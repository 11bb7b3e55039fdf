"""Driver of rollout tasks for hosted models: every request goes as soon as its task makes it.

No episode waits for another: a task's next request is sent when its previous one is answered. What
runs in this process beside the hosted model (a Q model, an expert) is asked in batches of whatever
waits for it.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from time import perf_counter
from typing import Any, Generic, TypeVar

from qguide.qnet.errors import ConfigError, QGuideError, UpstreamLostError
from qguide.qnet.policies.upstream_context import in_session
from qguide.qnet.support.concurrency import all_of
from qguide.qnet.types import Candidate, SampleRequest, Scorer, ScoreRequest, ScoreResult
from qguide.training.data.runs import JsonlWriter, RunFolder
from qguide.training.rollouts.hosted import Draw, HostedPolicy, Tally
from qguide.training.rollouts.policies import HostedPolicyWithRollouts, JobPolicy
from qguide.training.rollouts.rollout import (
    Answer,
    EnvironmentCall,
    RolloutRequest,
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
from qguide.training.rollouts.usage import Usage, recorded_usage

T = TypeVar("T")
R = TypeVar("R", SampleRequest, ScoreRequest)
A = TypeVar("A")


def run_concurrently(
    tasks: Iterable[tuple[str, RolloutTask[T]]],
    *,
    policy: JobPolicy,
    scorer: Scorer | None = None,
    parallel: int,
    environment_threads: int = 0,
    on_done: Callable[[str, T, Timings], None],
    on_failure: Callable[[str, QGuideError], None],
    on_usage: Callable[[str, Usage], None],
) -> None:
    """Run every task to its end, up to `parallel` of them at the same time.

    Args:
        tasks: (name, task) pairs, taken one by one as others finish. The name is the session of
            all requests that the task makes.
        parallel: maximum number of tasks running at the same time.
        environment_threads: number of environment calls that run in parallel; 0 runs them inline.
        on_done: called with a task's name, result and cost.
        on_failure: called with a task's name and the `QGuideError` that it raised; the other tasks
            continue. Any other exception is a bug and ends the run.
        on_usage: called with a task's name and the usage of its requests once it has ended for
            any reason.
    """
    if parallel < 1:
        raise ConfigError(f"parallel is {parallel}; set it to 1 or more")

    async def run() -> None:
        async with AsyncExitStack() as stack:
            draw = await _drawing(policy, stack)
            score = _scoring(scorer, stack)
            pool = ThreadPoolExecutor(environment_threads) if environment_threads else None
            player = _Player(draw, score, pool, on_done, on_failure, on_usage)
            await player.play_all(iter(tasks), parallel)

    asyncio.run(run())


async def _drawing(policy: JobPolicy, stack: AsyncExitStack) -> Draw:
    """The function that draws from a policy, open until the stack is closed."""
    match policy:
        case HostedPolicy():
            return await stack.enter_async_context(policy.connected())
        case HostedPolicyWithRollouts():
            branching = await _drawing(policy.branching, stack)
            rollouts = await _drawing(policy.rollouts, stack)

            def by_role(request: SampleRequest, tally: Tally) -> Awaitable[list[Candidate]]:
                return (rollouts if request.role == "rollout" else branching)(request, tally)

            return by_role
        case _:
            batches = _Batches(policy.sample_batch, stack.enter_context(ThreadPoolExecutor(1)))
            return lambda request, tally: batches.answer(request)


Score = Callable[[ScoreRequest], Awaitable[ScoreResult]]


def _scoring(scorer: Scorer | None, stack: AsyncExitStack) -> Score | None:
    if scorer is None:
        return None
    return _Batches(scorer.score, stack.enter_context(ThreadPoolExecutor(1))).answer


class _Batches(Generic[R, A]):
    """A model of this process, asked in batches on a thread of its own.

    Requests that arrive while one batch runs form the next one.
    """

    def __init__(
        self, model: Callable[[Sequence[R]], Sequence[A]], thread: ThreadPoolExecutor
    ) -> None:
        self._model: Callable[[Sequence[R]], Sequence[A]] = model
        self._thread = thread
        self._waiting: list[tuple[R, asyncio.Future[Answer]]] = []
        self._runner: asyncio.Task[None] | None = None

    async def answer(self, request: R) -> A:
        """Answer one request."""
        answered: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._waiting.append((request, answered))
        if self._runner is None:
            self._runner = asyncio.create_task(self._run())
        answer = await answered
        if answer.error is not None:
            raise answer.error
        value: A = answer.value
        return value

    async def _run(self) -> None:
        while self._waiting:
            await asyncio.sleep(0)  # so that every task that is ready now is in the batch
            batch, self._waiting = self._waiting, []
            requests = [request for request, _ in batch]
            loop = asyncio.get_running_loop()
            try:
                answers = await loop.run_in_executor(
                    self._thread, answer_all, requests, self._model
                )
            except Exception as error:  # a bug, which ends the run where the answer is awaited
                answers = []
                for _, answered in batch:
                    if not answered.done():
                        answered.set_exception(error)
            for (_, answered), answer in zip(batch, answers, strict=False):
                if not answered.done():
                    answered.set_result(answer)
        self._runner = None


@dataclass(slots=True, eq=False)
class _Running(Generic[T]):
    name: str
    task: RolloutTask[T]
    spent: Timings = field(default_factory=Timings)
    tally: Tally = field(default_factory=Tally)


class _Player(Generic[T]):
    """Plays tasks, each at its own pace."""

    def __init__(
        self,
        draw: Draw,
        score: Score | None,
        pool: ThreadPoolExecutor | None,
        on_done: Callable[[str, T, Timings], None],
        on_failure: Callable[[str, QGuideError], None],
        on_usage: Callable[[str, Usage], None],
    ) -> None:
        self._draw = draw
        self._score = score
        self._pool = pool
        self._on_done = on_done
        self._on_failure = on_failure
        self._on_usage = on_usage
        self._running: set[_Running[T]] = set()

    async def play_all(self, tasks: Iterator[tuple[str, RolloutTask[T]]], parallel: int) -> None:
        try:
            await all_of([self._play_each(tasks) for _ in range(parallel)])
        finally:
            if self._pool is not None:  # an environment is closed when no thread uses it any more
                self._pool.shutdown(cancel_futures=True)
            for running in self._running:
                running.task.close()

    async def _play_each(self, tasks: Iterator[tuple[str, RolloutTask[T]]]) -> None:
        """Play one task after the other; all players take from the same tasks."""
        for name, task in tasks:
            running = _Running(name, task)
            self._running.add(running)
            try:
                with in_session(name):
                    await self._play(running)
            finally:
                self._on_usage(name, running.tally.usage)
            self._running.remove(running)

    async def _play(self, running: _Running[T]) -> None:
        answer = Answer()
        while True:
            try:
                request = resume(running.task, answer)
            except StopIteration as end:
                self._on_done(running.name, end.value, running.spent)
                return
            except QGuideError as error:
                self._on_failure(running.name, error)
                return
            answer = await self._answer(running, request)

    async def _answer(self, running: _Running[T], request: RolloutRequest) -> Answer:
        spent, start = running.spent, perf_counter()
        match request:
            case TimingsRequest():
                return Answer(replace(spent))
            case EnvironmentCall():
                answer, seconds = await self._act(request)
                spent.environment_s += seconds
            case ScoreRequest():
                answer = await self._answer_score(request)
                spent.scorer_s += perf_counter() - start
            case SampleRequest() | SampleRequests():
                draws = [self._answer_draw(each, running.tally) for each in draws_of(request)]
                answer = gathered(request, await all_of(draws))
                spent.policy_s += perf_counter() - start
        return answer

    async def _act(self, request: EnvironmentCall) -> tuple[Answer, float]:
        if self._pool is None:
            return call(request)
        return await asyncio.get_running_loop().run_in_executor(self._pool, call, request)

    async def _answer_score(self, request: ScoreRequest) -> Answer:
        if self._score is None:
            raise ConfigError("a task needs Q-values, but the run has no scorer; name a Q model")
        return await _answered(self._score(request))

    async def _answer_draw(self, request: SampleRequest, tally: Tally) -> Answer:
        return await _answered(self._draw(request, tally))


async def _answered(work: Awaitable[Any]) -> Answer:
    """The result as an answer; an error is the task's own, but for a lost upstream."""
    try:
        return Answer(await work)
    except UpstreamLostError:
        raise
    except QGuideError as error:
        return Answer(error=error)


class HostedRun:
    """The hosted part of a run.

    Attributes:
        usage: usage of all tasks that have ended, by all starts of the run.
    """

    def __init__(self, folder: RunFolder, metrics: JsonlWriter) -> None:
        self.usage = recorded_usage(folder.metrics)
        self._folder = folder
        self._metrics = metrics

    def play(self, tasks: Iterable[tuple[str, RolloutTask[T]]], **how: Any) -> None:
        """Run every task to its end; see `run_concurrently`, which takes the same options."""
        try:
            run_concurrently(tasks, on_usage=self._add, **how)
        except UpstreamLostError as error:
            raise UpstreamLostError(
                f"{error}. What is finished is kept in {self._folder.path}; once the upstream "
                "answers again, run the same command again to resume"
            ) from error
        finally:
            self._metrics.write({"usage": self.usage.model_dump()})

    def _add(self, task_id: str, usage: Usage) -> None:
        if usage.requests:
            self.usage += usage
            self._metrics.write({"task_id": task_id, "usage": usage.model_dump()})

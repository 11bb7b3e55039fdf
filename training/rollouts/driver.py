"""The driver of rollout tasks: many generators at the same time, whoever answers them.

A model of this process is asked in batches: all tasks that wait for the policy are answered with
one `sample_batch`, and all that wait for the scorer with one `score`. A hosted policy answers each
request on its own, so those are sent at once, and a task's next request when its last is answered.

Where nothing is hosted, batches take turns in the caller's thread: policy, scorer, environments.
The order decides which requests share a batch, and so the last digits of what they answer. Beside a
hosted policy a batch runs on a thread of its own, so that it keeps no answered task waiting.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack
from dataclasses import dataclass
from time import perf_counter
from typing import Any, TypeVar

from qguide.qnet.errors import ConfigError, QGuideError, UpstreamLostError
from qguide.qnet.types import BatchPolicy, SampleRequest, Scorer
from qguide.qnet.work import all_of, in_session
from qguide.training.data.runs import JsonlWriter, RunFolder
from qguide.training.rollouts.hosted import Draw, HostedPolicy
from qguide.training.rollouts.policies import JobPolicy, is_any_hosted, policies_of
from qguide.training.rollouts.rollout import Answer, RolloutTask, TaskTimings, answer_all
from qguide.training.rollouts.rounds import (
    Batches,
    Driver,
    PendingRequest,
    Reports,
    Running,
    computed_tokens,
    generated_tokens,
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
    scores: Batches[T] | None = Batches(scorer.score, computed_tokens) if scorer else None
    reports = Reports(on_done, on_failure, on_usage)
    pool = ThreadPoolExecutor(environment_threads) if environment_threads else None
    if policy is None or not is_any_hosted(policy):
        assert not isinstance(policy, HostedPolicy)
        draws: Batches[T] | None = Batches(policy.sample_batch, generated_tokens) if policy else None
        Driver(draws, scores, pool, reports).run(iter(tasks), parallel)
        return
    both = policies_of(policy)

    async def run() -> None:
        async with AsyncExitStack() as stack:
            driver = _HostedDriver(await _hosted_draws(both, stack), scores, pool, reports)
            await driver.run_on_loop(iter(tasks), parallel)

    asyncio.run(run())


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


@dataclass(frozen=True, slots=True)
class _HostedDraws:
    """The draws by role; None stands for those of the policy of this process."""

    act: Draw | None
    rollouts: Draw | None
    own: BatchPolicy | None


async def _hosted_draws(both: tuple[JobPolicy, JobPolicy], stack: AsyncExitStack) -> _HostedDraws:
    """The draws of two policies, or of one twice, which are connected until the stack is closed."""
    draws: dict[int, Draw] = {}  # by identity: a policy of one's own may have no hash
    for policy in both:
        if isinstance(policy, HostedPolicy) and id(policy) not in draws:
            draws[id(policy)] = await stack.enter_async_context(policy.connected())
    own = next((policy for policy in both if not isinstance(policy, HostedPolicy)), None)
    return _HostedDraws(draws.get(id(both[0])), draws.get(id(both[1])), own)


class _HostedDriver(Driver[T]):
    """The same on an event loop, where hosted draws are in flight, too."""

    def __init__(
        self, hosted: _HostedDraws, scores: Batches[T] | None, pool: ThreadPoolExecutor | None, reports: Reports[T]
    ) -> None:
        own = hosted.own
        draws = Batches[T](own.sample_batch, generated_tokens) if own else None
        super().__init__(draws, scores, pool, reports)
        self._hosted = hosted
        self._loop = asyncio.get_running_loop()
        self._woken = asyncio.Event()
        for batches in self._models():
            batches.thread = ThreadPoolExecutor(1)

    async def run_on_loop(self, tasks: Iterator[tuple[str, RolloutTask[T]]], parallel: int) -> None:
        """Run until all tasks have ended; what ends in between is taken up at once."""
        try:
            while self._round(tasks, parallel):
                await self._woken.wait()
                self._woken.clear()
                self._take_ended()
        finally:
            drawing = [work for work in self._in_flight if isinstance(work, asyncio.Task)]
            for task in drawing:
                task.cancel()
            await asyncio.gather(*drawing, return_exceptions=True)
            self._close()

    def _draw(self, asked: PendingRequest[T], draws: Sequence[tuple[int, SampleRequest]]) -> None:
        hosted: list[tuple[PendingRequest[T], int, tuple[Draw, SampleRequest]]] = []
        for number, request in draws:
            draw = self._hosted.rollouts if request.role == "rollout" else self._hosted.act
            if draw is None:
                super()._draw(asked, [(number, request)])
            else:
                hosted.append((asked, number, (draw, request)))
        if hosted:
            sent = self._send(asked.running, [each for _, _, each in hosted])
            no_share = [0.0] * len(hosted)
            self._launch(self._loop.create_task(sent), lambda answers: self._hand_out(hosted, answers, no_share))

    async def _send(self, running: Running[T], draws: Sequence[tuple[Draw, SampleRequest]]) -> list[Answer]:
        with in_session(running.name):
            sent = [_answered(draw(request, running.tally)) for draw, request in draws]
            return await all_of(sent) if len(sent) > 1 else [await sent[0]]

    def _answer_batch(self, batches: Batches[T]) -> None:
        if batches.busy:
            return
        waiting, batches.waiting = batches.waiting, []
        batches.busy = True
        assert batches.thread is not None

        def answered(answers: Sequence[Answer]) -> None:
            batches.busy = False
            self._hand_out(waiting, answers, [0.0] * len(waiting))

        requests = [request for _, _, request in waiting]
        self._launch(batches.thread.submit(answer_all, requests, batches.model), answered)

    def _seconds(self, asked: PendingRequest[T]) -> float:
        return perf_counter() - asked.since  # the task has waited so long

    def _report_end(self, work: Any) -> None:
        super()._report_end(work)
        if isinstance(work, asyncio.Task):  # which ended on this thread
            self._woken.set()
        else:
            self._loop.call_soon_threadsafe(self._woken.set)

    def _close(self) -> None:
        for batches in self._models():
            assert batches.thread is not None
            batches.thread.shutdown(cancel_futures=True)
        super()._close()


async def _answered(work: Awaitable[Any]) -> Answer:
    """The result as an answer; an error is the task's own, but for a lost upstream."""
    try:
        return Answer(await work)
    except UpstreamLostError:
        raise
    except QGuideError as error:
        return Answer(error=error)


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

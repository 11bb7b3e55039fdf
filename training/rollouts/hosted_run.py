"""Rollout tasks of a run with a hosted policy: usage recorded, and an end that can be resumed."""

from collections.abc import Callable, Iterable
from typing import TypeVar

from qguide.qnet.errors import QGuideError, UpstreamLostError
from qguide.qnet.types import Scorer
from qguide.training.data.runs import JsonlWriter, RunFolder
from qguide.training.rollouts.concurrent import run_concurrently
from qguide.training.rollouts.policies import HostedPolicies
from qguide.training.rollouts.rollout import RolloutTask, Timings
from qguide.training.rollouts.usage import Usage, recorded_usage

T = TypeVar("T")


class HostedRun:
    """The hosted part of a run.

    Attributes:
        usage: usage of all tasks that have ended, by all starts of the run.
    """

    def __init__(self, folder: RunFolder, metrics: JsonlWriter) -> None:
        self.usage = recorded_usage(folder.metrics)
        self._folder = folder
        self._metrics = metrics

    def play(
        self,
        tasks: Iterable[tuple[str, RolloutTask[T]]],
        *,
        policy: HostedPolicies,
        scorer: Scorer | None = None,
        parallel: int,
        environment_threads: int = 0,
        on_done: Callable[[str, T, Timings], None],
        on_failure: Callable[[str, QGuideError], None],
    ) -> None:
        """Run every task to its end; see `run_concurrently`."""
        try:
            run_concurrently(
                tasks,
                policy=policy,
                scorer=scorer,
                parallel=parallel,
                environment_threads=environment_threads,
                on_done=on_done,
                on_failure=on_failure,
                on_usage=self._add,
            )
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

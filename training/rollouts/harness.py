"""Harness of the jobs that play: run folder, resumption, progress, failures and rows in one place.

A job plays each task in a generator, which writes its rows as soon as they are complete:

    with open_rollouts("explore", config, weights=hashes) as rollouts:
        rollouts.play(lambda task: grow_tree(task, rollouts), policy=policy)

Many tasks are played in parallel, so that the models answer in batches. A task that has a row is
not played again; one that failed has none, so a resumed run tries it again.
"""

from collections.abc import Callable, Iterator, Mapping, Set
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field
from rich.console import Console

from qnet.errors import EnvironmentFailureError, QGuideError
from qnet.types import BatchPolicy, Scorer
from training.data.runs import JsonlWriter, RunFolder, finished_task_ids, open_run
from training.environment import Environment, EnvironmentBundle, Task
from training.environments.registry import AnyEnvironment, default_environment
from training.environments.task_selection import SelectedSuite, build_selected_suite
from training.progress import ProgressBar
from training.rollouts.models import Inference
from training.rollouts.rollout import RolloutTask, run_rollouts

MAY_CHANGE = frozenset({"output", "parallel", "inference"})
"""Fields that a resumed run may change, because no row depends on them."""


class RolloutConfig(BaseModel):
    """Configuration shared by all jobs that play.

    Attributes:
        output: the run folder to write or resume.
        environment: the tasks to play.
        inference: how the models run.
        parallel: number of tasks played in parallel, and so the size of the models' batches.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    output: Path
    environment: AnyEnvironment = Field(default_factory=default_environment)
    inference: Inference = Inference()
    parallel: int = Field(default=64, ge=1)


@dataclass(frozen=True, slots=True)
class PlayableTask:
    """A task, with everything that a job needs to play it any number of times.

    Attributes:
        make: makes a fresh, single-use episode of the task, the same one every time.
        environment: bundle of the task's environment.
    """

    task: Task
    make: Callable[[], Environment]
    environment: EnvironmentBundle[Any]


@dataclass(frozen=True, slots=True)
class TaskFailure:
    """A task that could not be played."""

    task_id: str
    error: str


@dataclass(slots=True)
class Rollouts:
    """The open run of a job.

    Attributes:
        folder: its files.
        suite: the tasks.
        metrics: writer of figures and failures.
        failures: tasks that this run could not play.
    """

    job: str
    config: RolloutConfig
    folder: RunFolder
    suite: SelectedSuite
    metrics: JsonlWriter
    console: Console | None
    failures: list[TaskFailure] = field(default_factory=list)
    _rows: JsonlWriter | None = None
    _bar: ProgressBar | None = None

    def play(
        self,
        rollout: Callable[[PlayableTask], RolloutTask[None]],
        *,
        policy: BatchPolicy | None = None,
        scorer: Scorer | None = None,
        finished: Set[str] | None = None,
        rows: str = "rows.jsonl",
        rows_per_task: int = 1,
        rows_written: int | None = None,
    ) -> None:
        """Play every task that is not finished.

        Args:
            rollout: plays one task and calls `write` for each of its rows.
            policy, scorer: models that answer the rollouts' requests.
            finished: ids of the tasks not to play; None leaves out those that have a row.
            rows: name of the rows file.
            rows_per_task: number of rows of a task, for the progress bar.
            rows_written: number of rows there already; None counts `rows_per_task` for each
                finished task.
        """
        path = self.folder.path / rows
        done = finished_task_ids(path) if finished is None else finished
        waiting = [task for task in self.suite.tasks if task.id not in done]
        total = rows_per_task * len(self.suite.tasks)
        if rows_written is None:
            rows_written = total - rows_per_task * len(waiting)
        bar = ProgressBar(self.job, total=total, done=rows_written, console=self.console)
        with JsonlWriter(path) as self._rows, bar as self._bar:
            run_rollouts(
                ((task.id, rollout(self._playable(task))) for task in waiting),
                policy=policy,
                scorer=scorer,
                parallel=self.config.parallel,
                environment_threads=self.config.environment.threads,
                on_done=lambda task_id, value, timings: None,
                on_failure=self._fail,
            )

    def write(self, row: BaseModel | Mapping[str, object], *, note: str = "") -> None:
        """Write a row and advance the progress bar.

        Args:
            row: a row of the task that is being played.
            note: the latest figures, shown beside the bar.
        """
        assert self._rows is not None, "rows are written while `play` runs"
        self._rows.write(row)
        self.advance(note)

    def advance(self, note: str = "") -> None:
        """Advance the progress bar by one row that was written elsewhere, or that failed."""
        assert self._bar is not None, "the bar is shown while `play` runs"
        self._bar.advance(note)

    def require_some(self, written: int) -> None:
        """Check that at least one task was played.

        Args:
            written: number of rows that this run wrote.

        Raises:
            EnvironmentFailureError: all tasks failed.
        """
        if self.failures and not written:
            first = self.failures[0]
            raise EnvironmentFailureError(
                f"all {len(self.failures)} tasks failed; the first was {first.task_id}: "
                f"{first.error}"
            )

    def _playable(self, task: Task) -> PlayableTask:
        return PlayableTask(task, partial(self.suite.make, task), self.suite.environment)

    def _fail(self, task_id: str, error: QGuideError) -> None:
        self.failures.append(TaskFailure(task_id, str(error)))
        self.metrics.write({"task_id": task_id, "error": str(error)})
        self.advance(f"{len(self.failures)} failed, most recently {task_id}")


@contextmanager
def open_rollouts(
    job: str,
    config: RolloutConfig,
    *,
    weights: Mapping[str, str] | None = None,
    console: Console | None = None,
) -> Iterator[Rollouts]:
    """Start or resume a job's run.

    Args:
        job: the job's name, shown beside the progress bar.
        config: the job's configuration.
        weights: hashes of its models, by the names under which `config.json` keeps them. A model
            that was trained again under the same name has another hash.
        console: shows the progress; None is stderr.

    Raises:
        ConfigError: another job is using the folder, its run has another configuration or other
            models, or there is no task to play.
    """
    with (
        open_run(config.output, config, may_change=MAY_CHANGE, weights=weights) as folder,
        closing(build_selected_suite(config.environment)) as suite,
        JsonlWriter(folder.metrics) as metrics,
    ):
        yield Rollouts(job, config, folder, suite, metrics, console)

"""Harness of the jobs that play: run folder, resumption, progress, failures and rows in one place.

A job plays each task in a generator, which writes its rows as soon as they are complete:

    with open_rollouts("explore", config, weights=hashes) as rollouts:
        rollouts.play(lambda task: grow_tree(task, rollouts), policy=policy)

Many tasks are played in parallel: models in this process answer in batches, a hosted one answers
each request on its own. A task that has a row is not played again; one that failed has none, so a
resumed run tries it again, after all others.
"""

import json
from collections.abc import Callable, Iterator, Mapping, Set
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import takewhile
from pathlib import Path
from typing import Any, ClassVar, Self

from pydantic import BaseModel, Field, model_validator
from rich.console import Console

from qguide.qnet.errors import ConfigError, EnvironmentFailureError, QGuideError
from qguide.qnet.types import Scorer
from qguide.training.data.left_out import DIFFER, LeftOut
from qguide.training.data.row_files import ROWS
from qguide.training.data.runs import JsonlWriter, RunFolder, finished_task_ids, open_run
from qguide.training.environment import Branching, Environment, EnvironmentBundle, Task
from qguide.training.environments.branches import BranchingChoice, SnapshotBranches, choose_branching
from qguide.training.environments.registry import (
    AnyEnvironment,
    SelectedSuite,
    build_selected_suite,
    default_environment,
)
from qguide.training.options import JobOptions
from qguide.training.processes.messages import DeadlyRequestError, WorkerLostError
from qguide.training.progress import ProgressBar
from qguide.training.rollouts.driver import HostedRun, run_rollouts
from qguide.training.rollouts.game import Game, ReplayDiffersError
from qguide.training.rollouts.hosted import (
    UPSTREAMS_MAY_CHANGE,
    Upstreams,
    build_hosted_policy,
    is_hosted,
    require_upstream,
)
from qguide.training.rollouts.models import (
    INFERENCE_MAY_CHANGE,
    NO_MODEL,
    RANDOM,
    SCRIPTED,
    Inference,
    build_policy,
    build_scorer,
    name_of_weights,
)
from qguide.training.rollouts.policies import JobPolicy, ListedPolicy, is_any_hosted
from qguide.training.rollouts.remote_models import RayPolicy, RayScorer, Remote
from qguide.training.rollouts.rollout import RolloutTask, RunBudget, prompted
from qguide.training.rollouts.usage import UpstreamUsage
from qguide.training.trajectory import ChatFormat
from qguide.training.workers.config import Workers
from qguide.training.workers.suite import RemoteSuite, move_to_workers

_LIMITS = frozenset({"output", "parallel", "workers", "minutes", "calls", "differing"})
MAY_CHANGE = _LIMITS | INFERENCE_MAY_CHANGE | UPSTREAMS_MAY_CHANGE
"""Fields that a resumed run may change: no row depends on them, but those of a task that a limit has
cut, which stay as they are."""
MOST_ATTEMPTS = 3
"""Times that a task is played which lost workers end."""


class RolloutConfig(JobOptions):
    """Configuration shared by all jobs that play.

    Attributes:
        output: the run folder to write or resume.
        environment: the tasks to play.
        inference: how the models run.
        parallel: number of tasks played in parallel, and so the size of the models' batches.
        workers: processes that hold the environments; the job's own by default.
        upstreams: name -> a hosted model, which `policy = "upstream:NAME"` draws from.
    """

    policy_fields: ClassVar[tuple[str, ...]] = ()

    output: Path
    environment: AnyEnvironment = Field(default_factory=default_environment)
    inference: Inference = Inference()
    parallel: int = Field(default=64, ge=1)
    workers: Workers = Workers()
    upstreams: Upstreams = Field(default_factory=dict)

    @model_validator(mode="after")
    def _policies_have_upstreams(self) -> Self:
        for field_name in self.policy_fields:
            require_upstream(getattr(self, field_name), self.upstreams)
        return self


@dataclass(frozen=True, slots=True)
class PlayableTask:
    """A task, with everything that a job needs to play it any number of times.

    Attributes:
        make: makes a fresh, single-use episode of the task, the same one every time. For a job that
            branches, its episodes share the snapshots of their states where replays differ.
    """

    task: Task
    make: Callable[[], Environment]
    environment: EnvironmentBundle[Any]

    def game(self, seed: int) -> Game:
        """The task as a game whose draws derive from a seed."""
        return Game(self.make, (seed, self.task.id), self.environment.chat)


@dataclass(frozen=True, slots=True)
class TaskFailure:
    """A task that could not be played."""

    task_id: str
    error: str


@dataclass(slots=True)
class Rollouts:
    """The open run of a job.

    Attributes:
        budget: no further task is begun when it is spent; methods end theirs at the next episode.
    """

    job: str
    config: RolloutConfig
    folder: RunFolder
    suite: SelectedSuite
    metrics: JsonlWriter
    console: Console | None
    failures: list[TaskFailure] = field(default_factory=list)
    budget: RunBudget = field(default_factory=RunBudget)
    _lost: list[str] = field(default_factory=list)
    _hosted: HostedRun | None = None
    _branching: BranchingChoice | None = None
    _had_rows: bool = False
    _differing: set[str] = field(default_factory=set)
    _played: set[str] = field(default_factory=set)
    _gpus: float = 0.0
    _rows: JsonlWriter | None = None
    _bar: ProgressBar | None = None

    def play(
        self,
        rollout: Callable[[PlayableTask], RolloutTask[None]],
        *,
        policy: JobPolicy | None = None,
        scorer: Scorer | None = None,
        finished: Set[str] | None = None,
        rows: str = ROWS,
        rows_per_task: int = 1,
        rows_written: int | None = None,
        as_agent: bool = True,
    ) -> None:
        """Play every task that is not finished.

        Args:
            finished: ids of the tasks not to play; None leaves out those that have a row.
            rows_written: number of rows there already; None counts `rows_per_task` for each
                finished task.
            as_agent: the draws are an agent's, so they get the environment's tools and few-shot
                turns; False asks the policy for something other than actions.
        """
        path = self.folder.path / rows
        done = finished_task_ids(path) if finished is None else finished
        waiting = [task for task in self.suite.tasks if task.id not in done]
        self._had_rows = path.exists() and path.stat().st_size > 0
        failures = [row for row in _rows_of(self.folder.metrics) if "task_id" in row and "error" in row]
        failed = {row["task_id"] for row in failures}
        # One that plays to its end in a later start does so by luck, which is a bias, too.
        self._differing = {row["task_id"] for row in failures if DIFFER in row}
        self._played = {task.id for task in self.suite.tasks if task.id in done}
        waiting.sort(key=lambda task: task.id in failed)  # stable: otherwise in the suite's order
        total = rows_per_task * len(self.suite.tasks)
        if rows_written is None:
            rows_written = total - rows_per_task * len(waiting)
        bar = ProgressBar(self.job, total=total, done=rows_written, console=self.console)
        chat = self.suite.environment.chat if as_agent else ChatFormat()
        how: dict[str, Any] = {
            "scorer": scorer,
            "parallel": self.config.parallel,
            "environment_threads": self._environment_threads,
            "on_done": lambda task_id, value, timings: self._played.add(task_id),
        }
        with self._telling_lost_workers(), JsonlWriter(path) as self._rows, bar as self._bar:
            if is_any_hosted(policy):
                self._hosted = HostedRun(self.folder, self.metrics)
            for attempt in range(MOST_ATTEMPTS):
                again = attempt + 1 < MOST_ATTEMPTS
                how["on_failure"] = self._fail_or_repeat if again else self._fail
                tasks = (
                    (t.id, self.budget.counting(prompted(rollout(self._playable(t)), chat)))
                    for t in takewhile(lambda t: not self.budget.reason, waiting)
                )
                (self._hosted.play if self._hosted else run_rollouts)(tasks, policy=policy, **how)
                lost, self._lost = set(self._lost), []
                waiting = [task for task in waiting if task.id in lost]
        self._tell_end()

    def _tell_end(self) -> None:
        console = self.console or Console(stderr=True)
        if reason := self.budget.reason:
            self.metrics.write({"ended_by": reason})
            console.print(
                f"{self.job}: ended by {reason}; what is played is kept, and a start with more goes on", markup=False
            )
        if self._differing:
            self.metrics.write(self._left_out.figures)
            console.print(
                f"{self.job}: {self._left_out}, so their outcomes are biased; set branching to "
                '"snapshot" or "none", and play into another output',
                markup=False,
            )

    def branch(self, *, required: bool = False) -> Branching:
        """Let this job's episodes branch, in the way that the environment allows, and say which.

        Call it before `play`. With "none", only whole episodes are what they seem. What the first
        start of the run found holds for all: another answer would mix two kinds of rows.

        Args:
            required: refuse "none", and leave the folder free.
        """
        if self._branching is None:
            before = self._chosen_branching()
            choice = before or choose_branching(self.suite)
            if required and choice.branching == "none":
                raise ConfigError(
                    f"{self.job} needs branches, but replays of {self.suite.environment.name} differ ({choice.reason}) "
                    "and it offers no snapshots; collect whole episodes, or explore and label trees of them, by which "
                    "`qguide choose --labels` judges"
                )
            if not before:
                self.metrics.write({"branching": choice.branching, "because": choice.reason})
            self._branching = choice
            if choice.branching != "replay":
                console = self.console or Console(stderr=True)
                what = {"snapshot": "branches restore snapshots", "none": "whole episodes only"}
                console.print(f"{self.job}: {what[choice.branching]}: {choice.reason}", markup=False)
        return self._branching.branching

    @property
    def usage(self) -> UpstreamUsage | None:
        """Usage of hosted policies, by all starts of the run; None if none was drawn from."""
        return self._hosted.usage if self._hosted is not None else None

    def write(self, *rows: BaseModel | Mapping[str, object], note: str = "") -> None:
        """Write rows, all at once, and advance the progress bar by one."""
        assert self._rows is not None, "rows are written while `play` runs"
        self._rows.write(*rows)
        self.advance(note)

    def advance(self, note: str = "") -> None:
        """Advance the progress bar by one row that was written elsewhere, or that failed."""
        assert self._bar is not None, "the bar is shown while `play` runs"
        self._bar.advance(f"{note}  {self.usage}" if self.usage is not None else note)

    def require_some(self, written: int) -> None:
        """Check that at least one task was played, by this start of the run or an earlier one."""
        if self.failures and not written and not self._had_rows:
            first = self.failures[0]
            raise EnvironmentFailureError(
                f"all {len(self.failures)} tasks failed; the first was {first.task_id}: {first.error}"
            )

    def build_policy(self, name: str, *, as_agent: bool = True) -> JobPolicy:
        """Build the policy of that name."""
        config, environment = self.config, self.suite.environment
        if is_hosted(name):
            return build_hosted_policy(name, config.upstreams)
        if as_agent and name in (RANDOM, SCRIPTED):
            return ListedPolicy(self.suite, scripted=name == SCRIPTED)
        if as_agent and environment.chat.tools and name not in NO_MODEL:
            raise ConfigError(
                f"policy is {name!r}, which writes text, and the actions of {environment.name} are "
                "tool calls; name a hosted policy, such as upstream:NAME"
            )
        if config.workers.policy_actors and name not in NO_MODEL:
            return self._in_actors(RayPolicy, name)
        return build_policy(name, config.inference, config.environment)

    def build_scorer(self, name: str) -> Scorer:
        """Build the Q model of that name."""
        config = self.config
        if config.workers.q_actors and name_of_weights(name):
            return self._in_actors(RayScorer, name)
        return build_scorer(name, config.inference)

    def _in_actors(self, kind: type[Remote], name: str) -> Remote:
        """The model of that name in actors, whose GPUs are counted with those of the job's other models."""
        config = self.config
        model = kind(name, config.inference, config.environment, config.workers, reserved_gpus=self._gpus)
        self._gpus += model.gpus
        return model

    def _chosen_branching(self) -> BranchingChoice | None:
        """The choice of the run's first start, which its metrics keep; None at that start."""
        for row in _rows_of(self.folder.metrics):
            if "branching" in row:
                return BranchingChoice(row["branching"], row["because"])
        return None

    def _playable(self, task: Task) -> PlayableTask:
        make: Callable[[], Environment] = partial(self.suite.make, task)
        if self._branching is not None and self._branching.branching == "snapshot":
            make = SnapshotBranches(make)
        return PlayableTask(task, make, self.suite.environment)

    @property
    def _left_out(self) -> LeftOut:
        return LeftOut(len(self._differing), len(self._differing | self._played))

    @property
    def _environment_threads(self) -> int:
        """Calls of workers only wait, each of them in a thread of its own."""
        if self.config.workers.executor == "inline":
            return self.config.environment.threads
        return self.config.parallel

    @contextmanager
    def _telling_lost_workers(self) -> Iterator[None]:
        """Say at the end how many workers were lost, and write it to the metrics, also if the job breaks off."""
        try:
            yield
        finally:
            suite = self.suite.suite
            if isinstance(suite, RemoteSuite) and suite.losses:
                lost = {"lost_workers": len(suite.losses), "reasons": sorted(set(suite.losses))}
                self.metrics.write(lost)
                console = self.console or Console(stderr=True)
                console.print(f"{self.job}: workers lost: {len(suite.losses)}; see {self.folder.metrics}", markup=False)
                suite.losses.clear()

    def _fail_or_repeat(self, task_id: str, error: QGuideError) -> None:
        """Note a task that a lost worker ended, to play it again as a whole."""
        if isinstance(error, WorkerLostError) and not isinstance(error, DeadlyRequestError):
            self._lost.append(task_id)
        else:
            self._fail(task_id, error)

    def _fail(self, task_id: str, error: QGuideError) -> None:
        self.failures.append(TaskFailure(task_id, str(error)))
        differing: dict[str, int] = {}
        if isinstance(error, ReplayDiffersError):
            self._differing.add(task_id)
            differing = self._left_out.figures
        self.metrics.write({"task_id": task_id, "error": str(error), **differing})
        self.advance(f"{len(self.failures)} failed, most recently {task_id}")


def _rows_of(metrics: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in metrics.read_text(encoding="utf-8").splitlines()]


def _selected_suite(config: RolloutConfig) -> SelectedSuite:
    selected = build_selected_suite(config.environment)
    try:
        selected.suite = move_to_workers(
            selected.suite, config.environment, config.workers, replays=selected.environment.branching == "replay"
        )
    except BaseException:
        selected.close()
        raise
    return selected


@contextmanager
def open_rollouts(
    job: str, config: RolloutConfig, *, weights: Mapping[str, str] | None = None, console: Console | None = None
) -> Iterator[Rollouts]:
    """Start or resume a job's run."""
    with (
        open_run(config.output, config, may_change=MAY_CHANGE, weights=weights) as folder,
        closing(_selected_suite(config)) as suite,
        JsonlWriter(folder.metrics) as metrics,
    ):
        yield Rollouts(job, config, folder, suite, metrics, console)

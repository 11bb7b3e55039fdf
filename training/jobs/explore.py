"""Grow an exploration tree per task with a policy (QLASS algorithm 2; methods.md, 2).

    qguide explore --config training/configs/alfworld/explore.toml

reads a policy checkpoint and, if named, the expert's trajectories; writes tree rows.
Many trees grow at once, so that the policy samples in batches. Each draw's seed comes
from (seed, task, draw): neither `parallel` nor a resume changes a tree.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from time import monotonic
from typing import Self

from pydantic import BaseModel, ConfigDict, Field, model_validator
from rich.console import Console

from qnet.errors import EnvironmentFailureError, QGuideError
from qnet.types import BatchPolicy
from training.algorithms.labelling import sibling_groups
from training.algorithms.tree import branching_fraction
from training.data.records import NodeRow, TrajectoryRow, TreeRow
from training.data.runs import (
    JsonlWriter,
    RunFolder,
    finished_task_ids,
    open_run,
    read_rows,
    rows_path,
)
from training.environment import Task
from training.environments.registry import AnyEnvironment, default_environment, find_environment
from training.environments.task_selection import SelectedSuite, build_selected_suite
from training.exploration.tree_expansion import Exploration, ExploredTree, explore_task
from training.rollouts.models import (
    EMBEDDED,
    Inference,
    build_policy,
    build_scorer,
    model_folder,
    sha256_of_policy,
    weights_sha256,
)
from training.rollouts.policies import GuidedPolicy, PolicyWithRollouts
from training.rollouts.progress import ProgressBar
from training.rollouts.rollout import RolloutTask, Timings, run_processes
from training.trajectory import Step

MAY_CHANGE = frozenset({"output", "parallel", "inference"})
MEANS = frozenset({"branching_fraction", "expanded_branching_fraction", "mean_leaf_reward"})
"""The figures of a tree whose mean over trees is reported; the others are added up."""


class ExploreConfig(BaseModel):
    """What `qguide explore` reads.

    Attributes:
        output: the run folder to write, or to resume.
        environment: the tasks to explore.
        policy: "embedded", the folder of a policy, or "expert": its siblings are mistakes that
            it recovers from.
        guide: "embedded" or the folder of a Q model, which chooses the policy's own steps among
            `exploration.candidates`: a second, on-policy round; "" for none.
        rollouts: what plays on after a deviation, in place of `policy`; the names are the same.
        inference: how the policy runs.
        expert: run folders of `collect`; a task's best trajectory is merged into its tree.
        exploration: how a tree grows.
        parallel: trees that grow at the same time; a batch of the policy is as large.
        seed: of every draw.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    output: Path
    environment: AnyEnvironment = Field(default_factory=default_environment)
    policy: str = EMBEDDED
    guide: str = ""
    rollouts: str = ""
    inference: Inference = Inference()
    expert: tuple[Path, ...] = ()
    exploration: Exploration = Exploration()
    parallel: int = Field(default=64, ge=1)
    seed: int = 0

    @model_validator(mode="after")
    def _rollouts_are_greedy(self) -> Self:
        if self.rollouts and not self.exploration.greedy_rollout:
            raise ValueError(
                f"rollouts is {self.rollouts!r} and exploration.greedy_rollout false; another "
                "policy plays what is drawn at temperature 0, so set greedy_rollout to true"
            )
        return self

    @model_validator(mode="after")
    def _guide_has_a_choice(self) -> Self:
        if self.guide and self.exploration.candidates < 2:
            raise ValueError(
                f"guide is {self.guide!r} and exploration.candidates 1; a guide chooses among at "
                "least 2"
            )
        return self


class _ResolvedConfig(ExploreConfig):
    """What `config.json` holds: a policy trained again under the same name is another one."""

    policy_sha256: str
    guide_sha256: str
    rollouts_sha256: str


def run_explore(
    config: ExploreConfig, *, policy: BatchPolicy | None = None, console: Console | None = None
) -> dict[str, float]:
    """Explore the tasks that have no tree yet.

    Args:
        config: what to explore.
        policy: plays instead of the one that `config` names.
        console: where progress is shown; None takes stderr.

    Returns:
        What this run measured; a resumed one leaves out what came before it.

    Raises:
        ConfigError: the run folder belongs to another configuration.
        EnvironmentFailureError: no task could be explored.
    """
    resolved = _ResolvedConfig(
        **dict(config),
        policy_sha256="" if policy else sha256_of_policy(config.policy),
        guide_sha256=weights_sha256(model_folder(config.guide, "qnet")) if config.guide else "",
        rollouts_sha256=sha256_of_policy(config.rollouts) if config.rollouts else "",
    )
    with open_run(config.output, resolved, may_change=MAY_CHANGE) as run:
        return _explore(config, run, policy, console)


def _explore(
    config: ExploreConfig, run: RunFolder, policy: BatchPolicy | None, console: Console | None
) -> dict[str, float]:
    policy = policy or build_policy(config.policy, config.inference, config.environment)
    if config.guide:
        scorer = build_scorer(config.guide, config.inference)
        policy = GuidedPolicy(policy, scorer, num_candidates=config.exploration.candidates)
    if config.rollouts:
        policy = PolicyWithRollouts(
            policy, build_policy(config.rollouts, config.inference, config.environment)
        )
    with (
        closing(build_selected_suite(config.environment)) as suite,
        JsonlWriter(run.rows) as rows,
        JsonlWriter(run.metrics) as metrics,
    ):
        finished = finished_task_ids(run.rows)
        waiting = [task for task in suite.tasks if task.id not in finished]
        done = len(suite.tasks) - len(waiting)
        with ProgressBar("explore", total=len(suite.tasks), done=done, console=console) as bar:
            recorder = _Recorder(config, {task.id: task for task in waiting}, rows, metrics, bar)
            run_processes(
                _processes(config, suite, waiting, policy.name),
                policy=policy,
                parallel=config.parallel,
                environment_threads=config.environment.threads,
                on_done=recorder.on_done,
                on_failure=recorder.on_failure,
            )
        return recorder.close()


def tree_row(task: Task, environment: str, explored: ExploredTree) -> TreeRow:
    """The row of a finished tree."""
    return TreeRow(
        task_id=task.id,
        kind=task.kind,
        environment=environment,
        first_observation=explored.tree.first_observation,
        system=find_environment(environment).chat.system,
        nodes=tuple(NodeRow.from_node(node) for node in explored.tree.nodes),
        draws=explored.draws,
        misses=explored.misses,
        completion_tokens=explored.completion_tokens,
    )


def _processes(
    config: ExploreConfig, suite: SelectedSuite, tasks: Sequence[Task], source: str
) -> Iterator[tuple[str, RolloutTask[ExploredTree]]]:
    expert = _best_trajectories(config.expert)
    for task in tasks:
        process = explore_task(
            partial(suite.make, task),
            task_id=task.id,
            exploration=config.exploration,
            source=source,
            seed=config.seed,
            expert=expert.get(task.id, ()),
            chat=suite.environment.chat,
        )
        yield task.id, process


def _best_trajectories(folders: Sequence[Path]) -> dict[str, tuple[Step, ...]]:
    """Each task's trajectory with the highest outcome, the first of equal ones."""
    best: dict[str, TrajectoryRow] = {}
    for folder in folders:
        for row in read_rows(rows_path(folder), TrajectoryRow):
            known = best.get(row.task_id)
            if known is None or row.outcome_reward > known.outcome_reward:
                best[row.task_id] = row
    return {task_id: row.to_steps() for task_id, row in best.items()}


class _Recorder:
    """Writes each tree as it is finished, and counts what this run has explored."""

    def __init__(
        self,
        config: ExploreConfig,
        tasks: Mapping[str, Task],
        rows: JsonlWriter,
        metrics: JsonlWriter,
        bar: ProgressBar,
    ) -> None:
        self._config = config
        self._tasks = tasks
        self._rows = rows
        self._metrics = metrics
        self._bar = bar
        self._started = monotonic()
        self._trees = 0
        self._failures: list[str] = []
        self._totals: dict[str, float] = defaultdict(float)

    def on_done(self, task_id: str, explored: ExploredTree, timings: Timings) -> None:
        task = self._tasks[task_id]
        self._rows.write(tree_row(task, self._config.environment.name, explored))
        figures = tree_figures(explored, depth=self._config.exploration.depth)
        self._metrics.write({"task_id": task_id, **figures})
        self._trees += 1
        spent = {"policy_s": timings.policy_s, "environment_s": timings.environment_s}
        for name, figure in (figures | spent).items():
            self._totals[name] += figure
        summary = self._summary()
        self._bar.advance(
            f"branching {summary['expanded_branching_fraction']:.2f}  "
            f"reward {summary['mean_leaf_reward']:.2f}  {summary['draws_per_s']:.1f} draws/s"
        )

    def on_failure(self, task_id: str, error: QGuideError) -> None:
        self._failures.append(f"{task_id}: {error}")
        self._metrics.write({"task_id": task_id, "error": str(error)})
        self._bar.advance(f"{len(self._failures)} failed, the last one {task_id}")

    def close(self) -> dict[str, float]:
        """Write the run's figures.

        Raises:
            EnvironmentFailureError: every task failed.
        """
        if self._failures and not self._trees:
            raise EnvironmentFailureError(
                f"all {len(self._failures)} tasks failed; the first: {self._failures[0]}"
            )
        self._metrics.write({"summary": self._summary()})
        return self._summary()

    def _summary(self) -> dict[str, float]:
        seconds = monotonic() - self._started
        figures: dict[str, float] = {"trees": self._trees, "failures": len(self._failures)}
        for name, total in self._totals.items():
            figures[name] = total / self._trees if name in MEANS else total
        figures["wall_time_s"] = seconds
        figures["draws_per_s"] = self._totals["draws"] / seconds
        return figures


def tree_figures(explored: ExploredTree, *, depth: int) -> dict[str, float]:
    """What `metrics.jsonl` says of a tree.

    Args:
        explored: the tree and its cost.
        depth: of the deepest node that was expanded.
    """
    tree = explored.tree
    rewards = [leaf.step.reward for leaf in tree.leaves()]
    return {
        "nodes": len(tree.nodes),
        "leaves": len(rewards),
        "sibling_groups": sum(1 for _ in sibling_groups(tree)),
        "branching_fraction": branching_fraction(tree),
        "expanded_branching_fraction": branching_fraction(tree, depth=depth),
        "mean_leaf_reward": sum(rewards) / len(rewards) if rewards else 0.0,
        "draws": explored.draws,
        "misses": explored.misses,
        "completion_tokens": explored.completion_tokens,
    }

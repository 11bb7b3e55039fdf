"""Grow an exploration tree per task with a policy (QLASS algorithm 2; methods.md, 2).

    qguide explore --config training/configs/alfworld/explore.toml

reads a policy checkpoint and, if named, the expert's trajectories; writes tree rows.
Many trees grow at once, so that the policy samples in batches. Each draw's seed comes
from (seed, task, draw): neither `parallel` nor a resume changes a tree.
"""

from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from time import monotonic

from pydantic import BaseModel, ConfigDict, Field
from rich.console import Console

from qnet.errors import EnvironmentFailureError, QGuideError
from qnet.types import BatchPolicy
from training.algorithms.exploration import Exploration, ExploredTree, explore_task
from training.algorithms.tree import Step, branching_fraction
from training.artefacts import (
    JsonlWriter,
    finished_task_ids,
    open_run,
    read_rows,
    rows_path,
)
from training.environments.base import Task
from training.models import EMBEDDED, Inference, build_policy
from training.progress import ProgressBar
from training.records import NodeRow, TrajectoryRow, TreeRow
from training.rollout import Process, Timings, run_processes
from training.tasks import EnvironmentConfig, SelectedSuite, build_selected_suite

MAY_CHANGE = frozenset({"output", "parallel", "inference"})


class ExploreConfig(BaseModel):
    """What `qguide explore` reads.

    Attributes:
        output: the run folder to write, or to resume.
        environment: the tasks to explore.
        policy: "embedded", or the folder of a policy.
        inference: how the policy runs.
        expert: run folders of `collect`; a task's best trajectory is merged into its tree.
        exploration: how a tree grows.
        parallel: trees that grow at the same time; a batch of the policy is as large.
        seed: of every draw.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    output: Path
    environment: EnvironmentConfig = EnvironmentConfig()
    policy: str = EMBEDDED
    inference: Inference = Inference()
    expert: tuple[Path, ...] = ()
    exploration: Exploration = Exploration()
    parallel: int = Field(default=64, ge=1)
    seed: int = 0


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
    run = open_run(config.output, config, may_change=MAY_CHANGE)
    suite = build_selected_suite(config.environment)
    policy = policy or build_policy(config.policy, config.inference)
    tasks = {task.id: task for task in suite.tasks}
    tally = _Tally()
    with (
        closing(suite),
        JsonlWriter(run.rows) as rows,
        JsonlWriter(run.metrics) as metrics,
    ):
        finished = finished_task_ids(run.rows) & tasks.keys()
        waiting = [task for task in suite.tasks if task.id not in finished]
        with ProgressBar("explore", total=len(tasks), done=len(finished), console=console) as bar:

            def on_done(task_id: str, explored: ExploredTree, timings: Timings) -> None:
                rows.write(tree_row(tasks[task_id], config.environment.name, explored))
                metrics.write({"task_id": task_id, **tally.add(explored, timings)})
                bar.advance(tally.headline())

            def on_failure(task_id: str, error: QGuideError) -> None:
                tally.failures.append(f"{task_id}: {error}")
                metrics.write({"task_id": task_id, "error": str(error)})
                bar.advance(f"{len(tally.failures)} failed, the last one {task_id}")

            run_processes(
                _processes(config, suite, waiting, policy.name),
                policy=policy,
                parallel=config.parallel,
                environment_threads=config.environment.threads,
                on_done=on_done,
                on_failure=on_failure,
            )
        summary = tally.summary()
        metrics.write({"summary": summary})
    return summary


def tree_row(task: Task, environment: str, explored: ExploredTree) -> TreeRow:
    """The row of a finished tree."""
    return TreeRow(
        task_id=task.id,
        kind=task.kind,
        environment=environment,
        first_observation=explored.tree.first_observation,
        nodes=tuple(NodeRow.from_node(node) for node in explored.tree.nodes),
        draws=explored.draws,
        misses=explored.misses,
        completion_tokens=explored.completion_tokens,
    )


def _processes(
    config: ExploreConfig, suite: SelectedSuite, tasks: Sequence[Task], source: str
) -> Iterator[tuple[str, Process[ExploredTree]]]:
    expert = _best_trajectories(config.expert)
    for task in tasks:
        process = explore_task(
            partial(suite.make, task),
            task_id=task.id,
            exploration=config.exploration,
            source=source,
            seed=config.seed,
            expert=expert.get(task.id, ()),
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


@dataclass(slots=True)
class _Tally:
    """What this run has explored so far."""

    started: float = field(default_factory=monotonic)
    trees: int = 0
    nodes: int = 0
    draws: int = 0
    misses: int = 0
    completion_tokens: int = 0
    branching: float = 0.0
    leaf_reward: float = 0.0
    policy_s: float = 0.0
    environment_s: float = 0.0
    failures: list[str] = field(default_factory=list)

    def add(self, explored: ExploredTree, timings: Timings) -> dict[str, float]:
        """Count a tree; returns its own figures."""
        rewards = [leaf.step.reward for leaf in explored.tree.leaves()]
        figures = {
            "nodes": len(explored.tree.nodes),
            "leaves": len(rewards),
            "branching_fraction": branching_fraction(explored.tree),
            "mean_leaf_reward": sum(rewards) / len(rewards) if rewards else 0.0,
            "draws": explored.draws,
            "misses": explored.misses,
            "completion_tokens": explored.completion_tokens,
        }
        self.trees += 1
        self.nodes += len(explored.tree.nodes)
        self.draws += explored.draws
        self.misses += explored.misses
        self.completion_tokens += explored.completion_tokens
        self.branching += figures["branching_fraction"]
        self.leaf_reward += figures["mean_leaf_reward"]
        self.policy_s += timings.policy_s
        self.environment_s += timings.environment_s
        return figures

    def headline(self) -> str:
        """The figures that say how the run goes, in one line."""
        figures = self.summary()
        return (
            f"explore  branching {figures['branching_fraction']:.2f}  "
            f"reward {figures['mean_leaf_reward']:.2f}  {figures['draws_per_s']:.1f} draws/s"
        )

    def summary(self) -> dict[str, float]:
        """Figures of the run.

        Raises:
            EnvironmentFailureError: every tree failed.
        """
        if self.failures and not self.trees:
            raise EnvironmentFailureError(
                f"all {len(self.failures)} tasks failed; the first: {self.failures[0]}"
            )
        seconds, trees = monotonic() - self.started, max(1, self.trees)
        return {
            "trees": self.trees,
            "failures": len(self.failures),
            "nodes": self.nodes,
            "branching_fraction": self.branching / trees,
            "mean_leaf_reward": self.leaf_reward / trees,
            "draws": self.draws,
            "misses": self.misses,
            "completion_tokens": self.completion_tokens,
            "wall_time_s": seconds,
            "draws_per_s": self.draws / seconds,
            "policy_s": self.policy_s,
            "environment_s": self.environment_s,
        }

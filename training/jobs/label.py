"""Label exploration trees (QLASS algorithm 3 and its ablations; AgentPRM).

    qguide label --config training/configs/alfworld/label.toml

reads trees and writes them with a column of labels, which has the name of the target. Trees of the
same task are merged. The targets `td` and `gae` also read a Q model, which scores every action.
Other targets take seconds, so a killed run starts over; its rows appear all at once when it is
done.
"""

import math
from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Annotated, NamedTuple, Self, cast, get_args

from pydantic import BeforeValidator, Field, StringConstraints, model_validator
from rich.progress import track

from qguide.qnet.errors import ConfigError
from qguide.qnet.packages import import_named, plugins, raised_text
from qguide.qnet.records import MAX_REWARD, ROOT_ID
from qguide.qnet.types import Scorer, ScoreRequest
from qguide.training.algorithms.backups import Target, TreeTarget, gae_advantages, lambda_returns, sibling_groups
from qguide.training.algorithms.tree import Tree, branching_fraction
from qguide.training.data.left_out import left_out_of
from qguide.training.data.records import tree_row
from qguide.training.data.runs import JsonlWriter, RunFolder, open_run, rows_at_once
from qguide.training.data.task_trees import StoredTree, TaskTree, TaskTrees
from qguide.training.options import JobOptions
from qguide.training.rollouts.models import INFERENCE_MAY_CHANGE, Inference, build_scorer, sha256_of_q_model
from qguide.training.rollouts.rollout import value_request
from qguide.training.workers.config import RowWorkers, Workers
from qguide.training.workers.ray_actors import spread

OwnTarget = Annotated[str, StringConstraints(pattern=r"^\w+(\.\w+)*:\w+$")]
"""The import path of a function that takes a `Tree` and gives labels by node id."""


def _path_of(name: object) -> object:
    """The import path that an installed package gives a name; ours and import paths as they are."""
    if not isinstance(name, str) or ":" in name or name in get_args(Target):
        return name
    brought = plugins("labels")
    if name not in brought:
        known = ", ".join((*get_args(Target), *brought))
        raise ValueError(f"there is no target {name!r}; name one of {known}, or package.module:name")
    return brought[name]


AnyTarget = Annotated[Target | OwnTarget, BeforeValidator(_path_of)]

MAY_CHANGE = frozenset({"output", "min_reward", "max_reward", "workers"}) | INFERENCE_MAY_CHANGE
HISTOGRAM_BINS = 10
GAE_LAMBDA = 0.95


class LabelConfig(JobOptions):
    """Configuration of `qguide label`.

    Attributes:
        trees: run folders of `explore`.
        output: the run folder to write.
        target: `q` is the paper's; `avg` and `reward` are its ablations; `progress` is by how much
            an action changes `avg` (AgentPRM); `mcts` is the value that a search found (StepQ);
            `judge` is a judge's score of each candidate of served episodes. `td` is the return
            and `gae` the advantage that temporal differences of the values of `qnet` give
            (AgentPRM's promise and progress). "package.module:function" is a target of your own:
            a function that takes a `Tree` and gives labels by node id; so is a name that an
            installed package brings (`qguide.labels`).
        judge: for `judge`, the `name@version` of the judge; needed if the trees have several.
        gamma: discount per step; for `q`, `td` and `gae`.
        qnet: for `td` and `gae`, the Q model whose values they are made of: "embedded" or a folder.
            "" for the first round of labels, before there is one; then gae_lambda has to be 1.
        gae_lambda: for `td` and `gae`, weight of the outcomes against the values of `qnet`, from 0
            to 1; the default is a common one of PPO.
        inference: how `qnet` runs.
        workers: where labels are computed, for targets without a `qnet`: with the executor "ray", `count` tasks of
            Ray label at a time, and the rows are the same.
        normalize: scale each tree's labels to [0, 1], as the paper does; for `q` only.
        noop_cost_steps: number of steps that an action without effect counts as if it follows
            another one; the paper's is 1. For `q` only.
        min_reward, max_reward: bounds of every action's reward; a tree beyond them is refused.
    """

    trees: tuple[Path, ...] = Field(min_length=1)
    output: Path
    target: AnyTarget = "q"
    judge: str = ""
    gamma: float = Field(default=0.9, ge=0, le=1)
    normalize: bool = True
    noop_cost_steps: float = Field(default=1.0, ge=1)
    min_reward: float = Field(default=-100.0, ge=-MAX_REWARD, le=0)
    max_reward: float = Field(default=100.0, ge=0, le=MAX_REWARD)
    qnet: str = ""
    gae_lambda: float = Field(default=GAE_LAMBDA, ge=0, le=1)
    inference: Inference = Inference()
    workers: RowWorkers = Workers()

    @model_validator(mode="after")
    def _values_where_they_are_needed(self) -> Self:
        bootstrapped = self.target in ("td", "gae")
        if self.qnet and not bootstrapped:
            raise ValueError(
                f"qnet is {self.qnet!r}, but labels of the target {self.target!r} are not made of "
                "a Q model's values; set qnet to '', or target to 'td' or 'gae'"
            )
        if bootstrapped and not self.qnet and self.gae_lambda < 1:
            raise ValueError(
                f"gae_lambda is {self.gae_lambda:g}, but there is no qnet whose values labels with "
                "gae_lambda below 1 are made of; name one, or set gae_lambda to 1"
            )
        if self.qnet and self.workers.executor != "inline":
            raise ValueError(
                f"workers.executor is {self.workers.executor!r}, but the values of qnet {self.qnet!r} are computed in "
                "the job's own process; leave workers out"
            )
        return self


def run_label(config: LabelConfig, *, scorer: Scorer | None = None) -> dict[str, object]:
    """Write the labelled trees and return their statistics, as in `metrics.jsonl`."""
    weights = {}
    if config.qnet:
        sha256 = "" if scorer else sha256_of_q_model(config.qnet, config.inference)
        weights["qnet_sha256"] = sha256
    with open_run(config.output, config, may_change=MAY_CHANGE, weights=weights) as run:
        if config.qnet and scorer is None:
            scorer = build_scorer(config.qnet, config.inference)
        return _label(config, run, scorer)


def _label(config: LabelConfig, run: RunFolder, scorer: Scorer | None) -> dict[str, object]:
    found = list[_TreeStatistics]()
    with rows_at_once(run.rows) as writer:
        tasks = TaskTrees(
            config.trees,
            min_reward=config.min_reward,
            max_reward=config.max_reward,
            judge=config.judge if config.target == "judge" else None,
        )
        labelled = spread(partial(_labelled, config, scorer), tasks.stored(), config.workers)
        for line, of_tree in track(labelled, "label", total=len(tasks), transient=True):
            found.append(of_tree)
            writer.write_lines(line)
        if not any(len(tree.labels) for tree in found):
            raise ConfigError(
                f"target {config.target!r} labels no node of {', '.join(map(str, config.trees))}; "
                "choose another target, or other trees"
            )
    summary = _summary(found)
    if (left_out := left_out_of(config.trees)).tasks:
        summary |= left_out.figures
    with JsonlWriter(run.metrics) as metrics:
        metrics.write({"target": config.target, **summary})
    return summary


def _labelled(config: LabelConfig, scorer: Scorer | None, stored: StoredTree) -> tuple[bytes, "_TreeStatistics"]:
    task = stored.read()
    labels = labels_of(task, config, scorer)
    row = tree_row(replace(task.tree, values={config.target: labels}), task.row)
    return f"{row.model_dump_json()}\n".encode(), _statistics_of(task.tree, labels)


def labels_of(task: TaskTree, config: LabelConfig, scorer: Scorer | None = None) -> dict[int, float]:
    """The labels of one tree's nodes."""
    if ":" in config.target:
        return _own_labels(config.target, task)
    if config.target not in ("td", "gae"):
        return task.labels(
            target=cast(TreeTarget, config.target),
            gamma=config.gamma,
            normalized=config.normalize,
            noop_cost_steps=config.noop_cost_steps,
        )
    values = node_values(scorer, task) if scorer else {}
    compute = lambda_returns if config.target == "td" else gae_advantages
    return compute(task.tree, values, gamma=config.gamma, gae_lambda=config.gae_lambda)


def _own_labels(target: str, task: TaskTree) -> dict[int, float]:
    try:
        labels = dict(import_named(target)(task.tree))
        labels = {node: float(label) for node, label in labels.items()}
    except Exception as error:
        raise ConfigError(
            f"target {target!r} gave no labels of task {task.row.task_id}: {raised_text(error)}; "
            "it has to be a function of one Tree, installed or in the current folder"
        ) from error
    known = {node.id for node in task.tree.nodes}
    for node_id, label in labels.items():
        if node_id not in known or not math.isfinite(label):
            raise ConfigError(
                f"target {target!r} labels node {node_id!r} of task {task.row.task_id} {label!r}; "
                f"nodes are 1 to {len(known)} and labels are finite numbers"
            )
    return labels


class _TreeStatistics(NamedTuple):
    """Only the spread of labels among siblings can help to choose an action."""

    labels: "array[float]"
    spreads: "array[float]"
    branching: float
    has_reward: bool


def _statistics_of(tree: Tree, labels: Mapping[int, float]) -> _TreeStatistics:
    families = ([labels[node_id] for node_id in group if node_id in labels] for group in sibling_groups(tree))
    spreads = array("d", [max(values) - min(values) for values in families if len(values) > 1])
    has_reward = any(node.step.reward > 0 for node in tree.nodes)
    return _TreeStatistics(array("d", labels.values()), spreads, branching_fraction(tree), has_reward)


def _summary(trees: Sequence[_TreeStatistics]) -> dict[str, object]:
    labels = array("d", chain.from_iterable(tree.labels for tree in trees))
    spreads = array("d", chain.from_iterable(tree.spreads for tree in trees))
    mean = _mean(labels)
    return {
        "tasks": len(trees),
        "tasks_with_reward": sum(tree.has_reward for tree in trees),
        "labels": len(labels),
        "label_mean": mean,
        "label_std": math.sqrt(_mean([(label - mean) ** 2 for label in labels])),
        "label_min": min(labels),
        "label_max": max(labels),
        "histogram": _histogram(labels),
        "branching_fraction": _mean([tree.branching for tree in trees]),
        "sibling_groups": len(spreads),
        "tied_sibling_groups": sum(math.isclose(one, 0, abs_tol=1e-9) for one in spreads),
        "sibling_spread_mean": _mean(spreads),
    }


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values) if values else 0.0


def _histogram(labels: Sequence[float]) -> list[int]:
    low, width = min(labels), (max(labels) - min(labels)) / HISTOGRAM_BINS
    counts = [0] * HISTOGRAM_BINS
    for label in labels:
        counts[min(int((label - low) / width), HISTOGRAM_BINS - 1) if width else 0] += 1
    return counts


_STATES_AT_ONCE = 32


def node_values(scorer: Scorer, task: TaskTree) -> dict[int, float]:
    """Q of every node of a tree, by its id."""
    if scorer.ranks:
        raise ConfigError(
            f"{scorer.name} ranks the candidates of one state, and ranks are no values; name another Q model as qnet"
        )
    observes = scorer.reads_observation
    if observes:
        _require_observations(scorer.name, task)
    values: dict[int, float] = {}
    asked = list(_states(task.tree, observes=observes))
    for first in range(0, len(asked), _STATES_AT_ONCE):
        some = asked[first : first + _STATES_AT_ONCE]
        results = scorer.score([request for _, request in some])
        for (children, _), result in zip(some, results, strict=True):
            values |= dict(zip(children, result.q_values, strict=True))
    return values


def _states(tree: Tree, *, observes: bool) -> Iterator[tuple[tuple[int, ...], ScoreRequest]]:
    """The children of every state that has some, and the request for their values."""
    for node_id in (ROOT_ID, *(node.id for node in tree.nodes)):
        if children := tree.children[node_id]:
            steps = [tree.node(child).step for child in children]
            yield children, value_request(tree.history(node_id), steps, observes=observes)


def _require_observations(scorer: str, task: TaskTree) -> None:
    for node in task.tree.nodes:
        if node.step.unobserved:
            raise ConfigError(
                f"task {task.row.task_id}, node {node.id}: what the action was answered was not "
                f"recorded, and {scorer} reads it; name a Q model that is read at the action"
            )

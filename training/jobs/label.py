"""Label exploration trees (QLASS algorithm 3 and its ablations).

    qguide label --config training/configs/alfworld/label.toml

reads tree rows, writes label rows: one per root-to-leaf path, with one label per node. Trees of the
same task are merged. It takes seconds, so a killed run starts over; its rows appear all at once
when it is done.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field
from rich.progress import track

from qnet.records import MAX_REWARD, TreeRow
from qnet.types import Message
from training.algorithms.labelling import Target, labelled_paths, sibling_groups
from training.algorithms.tree import Tree, branching_fraction
from training.data.records import LabelRow, after_leaf_fields, rows_of
from training.data.runs import JsonlWriter, RunFolder, open_run, rows_at_once
from training.data.task_trees import read_task_trees
from training.trajectory import step_messages

MAY_CHANGE = frozenset({"output", "min_reward", "max_reward"})
HISTOGRAM_BINS = 10


class LabelConfig(BaseModel):
    """Configuration of `qguide label`.

    Attributes:
        trees: run folders of `explore`.
        output: the run folder to write.
        target: `q` is the paper's; `avg` and `reward` are its ablations; `progress` is by how much
            an action changes `avg` (AgentPRM); `mcts` is the value that a search found (StepQ);
            `judge` is a judge's score of each candidate of served episodes.
        judge: for `judge`, the `name@version` of the judge; needed if the trees have several.
        gamma: discount per step; for `q` only.
        normalize: scale each tree's labels to [0, 1], as the paper does; for `q` only.
        noop_cost_steps: number of steps that an action without effect counts as if it follows
            another one; the paper's is 1. For `q` only.
        min_reward, max_reward: bounds of every action's reward; a tree beyond them is refused.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    trees: tuple[Path, ...] = Field(min_length=1)
    output: Path
    target: Target = "q"
    judge: str = ""
    gamma: float = Field(default=0.9, ge=0, le=1)
    normalize: bool = True
    noop_cost_steps: float = Field(default=1.0, ge=1)
    min_reward: float = Field(default=-100.0, ge=-MAX_REWARD, le=0)
    max_reward: float = Field(default=100.0, ge=0, le=MAX_REWARD)


def run_label(config: LabelConfig) -> dict[str, object]:
    """Write the label rows and return their statistics, as in `metrics.jsonl`.

    Raises:
        ConfigError: there is no tree with an action.
        RecordError: a row is not a valid tree, or a reward in it is out of bounds.
    """
    with open_run(config.output, config, may_change=MAY_CHANGE) as run:
        return _label(config, run)


def _label(config: LabelConfig, run: RunFolder) -> dict[str, object]:
    statistics = _Statistics()
    with rows_at_once(run.rows) as writer:
        tasks = read_task_trees(
            config.trees,
            min_reward=config.min_reward,
            max_reward=config.max_reward,
            judge=config.judge if config.target == "judge" else None,
        )
        for task in track(tasks, "label", total=len(tasks), transient=True):
            labels = task.labels(
                target=config.target,
                gamma=config.gamma,
                normalized=config.normalize,
                noop_cost_steps=config.noop_cost_steps,
            )
            statistics.add(task.tree, labels)
            for row in label_rows(task.row, task.tree, labels, target=config.target):
                writer.write(row)
    summary = statistics.summary()
    with JsonlWriter(run.metrics) as metrics:
        metrics.write({"target": config.target, **summary})
    return summary


def label_rows(
    task: TreeRow, tree: Tree, labels: Mapping[int, float], *, target: Target
) -> Iterator[LabelRow]:
    """The rows of one labelled tree; each ends with its leaf's action."""
    before = () if task.system is None else (Message("system", task.system),)
    for path in labelled_paths(tree, labels):
        leaf = path.nodes[-1]
        reply, *observed = step_messages(leaf.step)
        row = LabelRow(
            task_id=task.task_id,
            kind=task.kind,
            environment=task.environment,
            target=target,
            messages=rows_of((*before, *tree.history(leaf.parent), reply)),
            q_values=path.q_values,
            node_ids=tuple(node.id for node in path.nodes),
            parent_ids=tuple(node.parent for node in path.nodes),
        )
        # What a candidate that was not taken would have been answered is unknown, and not "".
        taken = target != "judge" or not leaf.step.unobserved
        yield row.model_copy(update=after_leaf_fields(observed)) if taken else row


class _Statistics:
    """Statistics of the labels; only the spread among siblings can help to choose an action."""

    def __init__(self) -> None:
        self._labels: list[float] = []
        self._spreads: list[float] = []
        self._branching: list[float] = []
        self._tasks_with_reward = 0

    def add(self, tree: Tree, labels: Mapping[int, float]) -> None:
        self._labels += labels.values()
        self._branching.append(branching_fraction(tree))
        self._tasks_with_reward += any(node.step.reward > 0 for node in tree.nodes)
        for group in sibling_groups(tree):
            values = [labels[node_id] for node_id in group if node_id in labels]
            if len(values) > 1:
                self._spreads.append(max(values) - min(values))

    def summary(self) -> dict[str, object]:
        mean = _mean(self._labels)
        return {
            "tasks": len(self._branching),
            "tasks_with_reward": self._tasks_with_reward,
            "labels": len(self._labels),
            "label_mean": mean,
            "label_std": math.sqrt(_mean([(label - mean) ** 2 for label in self._labels])),
            "label_min": min(self._labels),
            "label_max": max(self._labels),
            "histogram": _histogram(self._labels),
            "branching_fraction": _mean(self._branching),
            "sibling_groups": len(self._spreads),
            "tied_sibling_groups": sum(math.isclose(s, 0, abs_tol=1e-9) for s in self._spreads),
            "sibling_spread_mean": _mean(self._spreads),
        }


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values) if values else 0.0


def _histogram(labels: Sequence[float]) -> list[int]:
    """Counts in equal bins between the lowest and the highest label."""
    low, width = min(labels), (max(labels) - min(labels)) / HISTOGRAM_BINS
    counts = [0] * HISTOGRAM_BINS
    for label in labels:
        counts[min(int((label - low) / width), HISTOGRAM_BINS - 1) if width else 0] += 1
    return counts

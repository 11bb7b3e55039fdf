"""Make preference pairs from decision groups, exploration trees and episodes.

    qguide pairs --config training/configs/alfworld/pairs.toml

reads the rows of other jobs and writes preference rows for `train-dpo`:

    source     pairs                                                              paper
    groups     every two candidates of one state                                  none
    explore    each action of the best path and its sibling of lowest Q           StepQ
               a tree's branches with different outcomes (trajectory_pairs)       StepQ's ablation
    collect    episodes of one task with different outcomes (against_expert)      ETO

It takes seconds, so a killed run starts over; its rows appear all at once when it is done.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Self

from pydantic import Field, model_validator

from qguide.qnet.chat_messages import effects_of
from qguide.qnet.errors import ConfigError
from qguide.qnet.records import MAX_REWARD, ROOT_ID, MessageRow, TreeRow, rows_of
from qguide.qnet.types import History
from qguide.training.algorithms.labelling import TreeTarget
from qguide.training.algorithms.preferences import best_path_pairs, value_pairs
from qguide.training.algorithms.tree import EXPERT, Node
from qguide.training.data.decision_groups import GroupLabels, decisions_of
from qguide.training.data.preferences import PreferenceRow, preference_row, scored_messages
from qguide.training.data.row_files import RowGroups
from qguide.training.data.runs import JsonlWriter, RunFolder, open_run, read_rows, rows_at_once
from qguide.training.data.task_trees import TaskTree, TaskTrees
from qguide.training.data.trajectories import trajectories_of
from qguide.training.options import JobOptions

_LEAST_MARGIN = 1e-9


class PairsConfig(JobOptions):
    """Configuration of `qguide pairs`.

    Attributes:
        groups: run folders of `groups`.
        trees: run folders of `explore`.
        trajectories: run folders of `collect`; episodes of one task are compared by their outcome.
        output: the run folder to write.
        group_labels: how values are computed from roll-outs; for `groups` only.
        target: values of a tree's nodes; StepQ uses those of its search, "mcts".
        gamma: discount per step; for the target `q` only.
        normalize: scale each tree's values to [0, 1]; for the target `q` only.
        step_pairs: make pairs of actions, from `groups` and `trees`.
        trajectory_pairs: make pairs of a tree's branches by their outcome, as in StepQ's ablation.
        against_expert: compare an episode of `trajectories` only if one side is the expert's and
            the other is not, as in ETO. False also compares a policy's episodes with each other.
        min_label_margin: actions whose values differ by less do not form a pair.
        most_per_task: maximum number of pairs of a task's episodes or branches; those with the
            largest differences are kept. 0 for no limit.
        min_reward, max_reward: bounds of every action's reward; a tree beyond them is refused.
    """

    groups: tuple[Path, ...] = ()
    trees: tuple[Path, ...] = ()
    trajectories: tuple[Path, ...] = ()
    output: Path
    group_labels: GroupLabels = GroupLabels()
    target: TreeTarget = "q"
    gamma: float = Field(default=0.9, ge=0, le=1)
    normalize: bool = True
    step_pairs: bool = True
    trajectory_pairs: bool = False
    against_expert: bool = False
    min_label_margin: float = Field(default=0.005, gt=0)
    most_per_task: int = Field(default=1, ge=0)
    min_reward: float = Field(default=-100.0, ge=-MAX_REWARD, le=0)
    max_reward: float = Field(default=100.0, ge=0, le=MAX_REWARD)

    @model_validator(mode="after")
    def _something_to_read(self) -> Self:
        if not self.groups and not self.trees and not self.trajectories:
            raise ValueError("groups, trees and trajectories are all empty; name a run folder")
        return self


def run_pairs(config: PairsConfig) -> dict[str, object]:
    """Write the preference rows; returns the statistics that `metrics.jsonl` gets too."""
    with open_run(config.output, config) as run:
        return _write(config, run)


def _write(config: PairsConfig, run: RunFolder) -> dict[str, object]:
    statistics = _Statistics()
    with rows_at_once(run.rows) as writer:
        for row in preference_rows(config):
            statistics.add(row)
            writer.write(row)
        if not statistics.tasks:
            raise ConfigError(
                "no two actions or episodes differ enough in value; lower min_label_margin "
                f"({config.min_label_margin:g}), or explore and collect with a policy that also "
                "fails"
            )
    summary = statistics.summary()
    with JsonlWriter(run.metrics) as metrics:
        metrics.write(summary)
    return summary


def preference_rows(config: PairsConfig) -> Iterator[PreferenceRow]:
    """All pairs, source by source and task by task."""
    for folder in config.groups:
        for row in read_rows(folder, TreeRow):
            yield from _of_groups(row, config)
    if config.trees:
        tasks = TaskTrees(config.trees, min_reward=config.min_reward, max_reward=config.max_reward)
        for task in tasks:
            yield from _of_tree(task, config)
    yield from _of_trajectories(config)


def _of_groups(row: TreeRow, config: PairsConfig) -> Iterator[PreferenceRow]:
    decisions = decisions_of(row)  # refuses another tree
    state: tuple[MessageRow, ...] = ()
    for decision in decisions if config.step_pairs else ():
        state += rows_of(decision.history[len(state) :])
        candidates = decision.candidates
        values = [label.value for label in decision.labels(config.group_labels)]
        pairs = value_pairs(
            values,
            min_margin=config.min_label_margin,
            sides=effects_of([candidate.message for candidate in candidates]),
        )
        for better, worse in pairs:
            yield preference_row(
                row,
                ("step", "group"),
                state=state,
                chosen=(candidates[better].message,),
                rejected=(candidates[worse].message,),
                values=(values[better], values[worse]),
                candidates=len(candidates),
            )


def _of_tree(task: TaskTree, config: PairsConfig) -> Iterator[PreferenceRow]:
    if config.step_pairs:
        yield from _along_best_path(task, config)
    if not config.trajectory_pairs:
        return
    tree = task.tree
    leaves = list(tree.leaves())
    rewards = [leaf.step.reward for leaf in leaves]
    for better, worse in value_pairs(rewards, min_margin=_LEAST_MARGIN, most=config.most_per_task):
        yield preference_row(
            task.row,
            ("trajectory", "outcome"),
            state=rows_of(tree.history(ROOT_ID)),
            chosen=_replies(tree.path(leaves[better].id)),
            rejected=_replies(tree.path(leaves[worse].id)),
            values=(rewards[better], rewards[worse]),
            candidates=len(leaves),
        )


def _along_best_path(task: TaskTree, config: PairsConfig) -> Iterator[PreferenceRow]:
    tree = task.tree
    values = task.labels(target=config.target, gamma=config.gamma, normalized=config.normalize)
    for better, worse in best_path_pairs(tree, values, min_margin=config.min_label_margin):
        parent = tree.node(better).parent
        yield preference_row(
            task.row,
            ("step", "best-path"),
            state=rows_of(tree.history(parent)),
            chosen=_replies([tree.node(better)]),
            rejected=_replies([tree.node(worse)]),
            values=(values[better], values[worse]),
            candidates=len(tree.children[parent]),
        )


def _of_trajectories(config: PairsConfig) -> Iterator[PreferenceRow]:
    rows = RowGroups(TreeRow)
    for folder in config.trajectories:
        rows.add(folder, lambda row: row.task_id if row.nodes else None)
    for group in rows:
        episodes = [(row, each) for row in group for each in trajectories_of(row)]
        outcomes = [each.reward for _, each in episodes]
        sides = [e.source == EXPERT for _, e in episodes] if config.against_expert else None
        for better, worse in value_pairs(outcomes, min_margin=_LEAST_MARGIN, most=config.most_per_task, sides=sides):
            row, chosen = episodes[better]
            if len(chosen.mistakes) == len(chosen.replies):  # nothing to prefer
                continue
            yield preference_row(
                row,
                ("trajectory", "outcome"),
                state=rows_of(chosen.opening),
                chosen=scored_messages(chosen.steps),
                rejected=scored_messages(episodes[worse][1].steps),
                values=(outcomes[better], outcomes[worse]),
                candidates=len(episodes),
                mistakes=chosen.mistakes,
            )


def _replies(nodes: Sequence[Node]) -> History:
    return scored_messages([node.step for node in nodes])


class _Statistics:
    """Statistics of the pairs."""

    def __init__(self) -> None:
        self.tasks: set[str] = set()
        self._counts = Counter[str]()
        self._gap = 0.0

    def add(self, row: PreferenceRow) -> None:
        self.tasks.add(row.task_id)
        self._counts[row.source] += 1
        self._gap += row.gap

    def summary(self) -> dict[str, object]:
        pairs = self._counts.total()
        sources = {f"{name}_pairs": count for name, count in sorted(self._counts.items())}
        return {"tasks": len(self.tasks), "pairs": pairs, **sources, "mean_gap": self._gap / pairs}

"""Exploration trees by task, with several explorations of one task merged into one tree.

A task's trees with different openings stay apart, because they hold no state in common.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from qguide.qnet.errors import ConfigError, RecordError
from qguide.qnet.records import TreeRow
from qguide.training.algorithms.labelling import TreeTarget, label_tree
from qguide.training.algorithms.tree import Tree, merge_trees
from qguide.training.data.judged_trees import judged_tree, require_one_judge
from qguide.training.data.openings import opening_hash_of_row, split_task_id, whole_task_id
from qguide.training.data.records import SearchRow, tree_from_row
from qguide.training.data.runs import read_rows, rows_path


@dataclass(frozen=True, slots=True)
class TaskTree:
    """The tree of one task.

    Attributes:
        row: row of the first exploration; its task id is no other tree's.
        searched: values of the search that grew the tree, by node id; empty if the tree was not
            grown by a search, or was merged from several.
        judged: a judge's scores by node id; empty unless they were asked for.
    """

    row: TreeRow
    tree: Tree
    searched: Mapping[int, float]
    judged: Mapping[int, float] = field(default_factory=dict)

    def labels(
        self, *, target: TreeTarget, gamma: float, normalized: bool, noop_cost_steps: float = 1.0
    ) -> dict[int, float]:
        """The label of every node; of a search or a judge, of every node that it has valued.

        Raises:
            ConfigError: the tree has no values of a search or of a judge.
        """
        if target == "judge":
            if not self.judged:
                raise ConfigError(
                    f"task {self.row.task_id} was read without a judge's scores, which `qguide "
                    "label` takes from served episodes; choose another target"
                )
            return dict(self.judged)
        if target == "mcts":
            if not self.searched:
                raise ConfigError(
                    f"task {self.row.task_id} does not have the values of a single search; explore "
                    "it once with strategy = 'mcts', or choose another target"
                )
            return dict(self.searched)
        return label_tree(
            self.tree,
            target=target,
            gamma=gamma,
            normalized=normalized,
            noop_cost_steps=noop_cost_steps,
        )


def read_task_trees(
    folders: Sequence[Path], *, min_reward: float, max_reward: float, judge: str | None = None
) -> list[TaskTree]:
    """Every task with at least one action, and its merged tree.

    A task whose trees have different openings, for example with the date, gives one tree for each
    opening. Their task ids end with a hash of the opening, because labels with equal task ids count
    as one tree's.

    Args:
        folders: run folders of `explore`.
        min_reward, max_reward: bounds of every action's reward.
        judge: read the candidates that this judge scored into the trees, and leave out tasks
            without any; "" is the only judge, None reads no scores.

    Raises:
        ConfigError: there is no tree with an action, no judge's score or several judges', or a
            folder is named twice.
        RecordError: a row is not a valid tree, stands in its file twice, or has a reward out of
            bounds.
    """
    tasks: dict[str, dict[str, list[SearchRow]]] = defaultdict(lambda: defaultdict(list))
    for path, folder in _once_each(folders).items():
        explored: dict[str, list[SearchRow]] = defaultdict(list)
        for row in read_rows(path, SearchRow):
            _check_rewards(row, folder, min_reward=min_reward, max_reward=max_reward)
            _check_it_is_new(row, folder, explored[row.task_id])
            if row.nodes:
                tasks[whole_task_id(row)][opening_hash_of_row(row)].append(row)
    if not tasks:
        raise ConfigError(
            f"no tree with an action in {', '.join(map(str, folders))}; run `qguide explore` first"
        )
    found = {
        split_task_id(task_id, digest, among=openings): rows
        for task_id, openings in tasks.items()
        for digest, rows in openings.items()
    }
    if judge is None:
        return [_task_tree(rows, task_id=task_id) for task_id, rows in found.items()]
    named = require_one_judge([row for rows in found.values() for row in rows], judge)
    judged = [_judged_tree(rows, task_id=task_id, judge=named) for task_id, rows in found.items()]
    return [task for task in judged if task.judged]


def _task_tree(rows: Sequence[SearchRow], *, task_id: str) -> TaskTree:
    tree = merge_trees([tree_from_row(row) for row in rows])
    row = rows[0].model_copy(update={"task_id": task_id})
    return TaskTree(row, tree, row.q_values if len(rows) == 1 else {})


def _judged_tree(rows: Sequence[SearchRow], *, task_id: str, judge: str) -> TaskTree:
    tree, scores = judged_tree(rows, judge=judge)
    return TaskTree(rows[0].model_copy(update={"task_id": task_id}), tree, {}, scores)


def _once_each(folders: Sequence[Path]) -> dict[Path, Path]:
    """The folders by their files of rows.

    Raises:
        ConfigError: two have the same file.
    """
    found: dict[Path, Path] = {}
    for folder in folders:
        path = rows_path(folder).resolve()
        if path in found:
            raise ConfigError(f"trees names {found[path]} and {folder}, the same rows; remove one")
        found[path] = folder
    return found


def _check_it_is_new(row: SearchRow, folder: Path, before: list[SearchRow]) -> None:
    """Refuse an exploration that a file holds twice; one draw, as of served episodes, may recur."""
    if row.draws > 1:
        if row in before:
            raise RecordError(
                f"{folder}, task {row.task_id}: the same exploration stands there twice; remove "
                "one of its rows"
            )
        before.append(row)


def _check_rewards(row: TreeRow, folder: Path, *, min_reward: float, max_reward: float) -> None:
    for node in row.nodes:
        if not min_reward <= node.reward <= max_reward:
            raise RecordError(
                f"{folder}, task {row.task_id}, node {node.id}: its reward is {node.reward:g}, but "
                f"rewards are {min_reward:g} to {max_reward:g} here; scale them, or set min_reward "
                "and max_reward"
            )

"""Exploration trees read task by task: several explorations of one task are one tree."""

from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

from qnet.errors import ConfigError, RecordError
from qnet.records import TreeRow
from training.algorithms.tree import Tree, merge_trees
from training.data.records import tree_from_row
from training.data.runs import read_rows, rows_path


def read_task_trees(
    folders: Sequence[Path], *, min_reward: float, max_reward: float
) -> list[tuple[TreeRow, Tree]]:
    """Every task with at least one action, and its merged tree.

    Args:
        folders: run folders of `explore`.
        min_reward, max_reward: bounds of every action's reward.

    Raises:
        ConfigError: there is no tree with an action.
        RecordError: a row is no tree, or a reward in it is out of bounds.
    """
    trees: dict[str, list[Tree]] = defaultdict(list)
    tasks: dict[str, TreeRow] = {}
    for folder in folders:
        for row in read_rows(rows_path(folder), TreeRow):
            _check_rewards(row, folder, min_reward=min_reward, max_reward=max_reward)
            if row.nodes:
                tasks.setdefault(row.task_id, row)
                trees[row.task_id].append(tree_from_row(row))
    if not tasks:
        raise ConfigError(
            f"no tree with an action in {', '.join(map(str, folders))}; run `qguide explore` first"
        )
    return [(task, merge_trees(trees[task_id])) for task_id, task in tasks.items()]


def _check_rewards(row: TreeRow, folder: Path, *, min_reward: float, max_reward: float) -> None:
    for node in row.nodes:
        if not min_reward <= node.reward <= max_reward:
            raise RecordError(
                f"{folder}, task {row.task_id}, node {node.id}: its reward is {node.reward:g}, but "
                f"rewards are {min_reward:g} to {max_reward:g} here; scale them, or set min_reward "
                "and max_reward"
            )

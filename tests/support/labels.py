"""Trees with labels, made of the chats of their paths."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise

from qguide.qnet.records import TaskRow, TreeRow
from qguide.qnet.types import Message
from qguide.training.algorithms.backups import LabelledPath, labelled_paths
from qguide.training.algorithms.tree import Tree, merge_branch
from qguide.training.data.records import LabelledTree, labelled_tree, tree_row
from qguide.training.trajectory import Step


def labelled(
    *chats: Sequence[Message],
    labels: Mapping[int, float],
    target: str = "q",
    task_id: str = "t",
    rewards: Sequence[float] = (),
) -> LabelledTree:
    """The tree of some chats that begin alike; nodes are numbered as they come.

    Args:
        rewards: of the last step of each chat.
    """
    starts = [[i for i, m in enumerate(chat) if m.role == "assistant"] for chat in chats]
    tree = Tree("", opening=tuple(chats[0][: starts[0][0]]), values={target: labels})
    for chat, replies, reward in zip(chats, starts, rewards or [0.0] * len(chats), strict=True):
        spans = pairwise([*replies, len(chat)])
        steps = [Step.of_messages(chat[at], tuple(chat[at + 1 : end])) for at, end in spans]
        steps[-1] = replace(steps[-1], reward=reward)
        tree, _ = merge_branch(tree, steps, source="policy")
    return LabelledTree(task_id, tree, target)


def row_of(tree: LabelledTree) -> TreeRow:
    """The row of a labelled tree."""
    return tree_row(tree.tree, TaskRow(task_id=tree.task_id, kind="k", environment="e"))


def paths_of(row: TreeRow) -> list[LabelledPath]:
    """The labelled paths of a row."""
    found = labelled_tree(row)
    return list(labelled_paths(found.tree, found.labels))

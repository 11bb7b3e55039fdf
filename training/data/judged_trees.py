"""Trees of served episodes with a judge's scores of the candidates, those not taken included.

For any other target a candidate that was not taken is no node: its return is unknown, and a leaf's
reward would become its label. A judge's score is a label of its own, so here it is one.
"""

from collections import defaultdict
from collections.abc import Collection, Sequence
from statistics import fmean

from qguide.qnet.errors import ConfigError
from qguide.qnet.records import ROOT_ID, JudgedRow, TreeRow, messages_of
from qguide.qnet.types import Message
from qguide.training.algorithms.tree import Tree, merge_branch
from qguide.training.data.records import tree_from_row
from qguide.training.trajectory import Step


def require_one_judge(found: Collection[str], judge: str) -> str:
    """The judge whose scores are labels; scores of different judges or prompts are never mixed.

    Args:
        found: `name@version` of every judge whose scores the rows have.
        judge: that of one; "" is the only one.
    """
    judges = sorted(found)
    if not judges:
        raise ConfigError(
            "no tree has a judge's scores; serve with a judge as the Q model and with "
            "QGUIDE_EPISODES_DIR, and report the episodes' outcomes"
        )
    if judge and judge not in judges:
        raise ConfigError(f"judge is {judge!r}, but the trees have scores of {', '.join(judges)}")
    if not judge and len(judges) > 1:
        raise ConfigError(
            f"the trees have scores of several judges ({', '.join(judges)}); choose one with judge"
        )
    return judge or judges[0]


def judged_tree(rows: Sequence[TreeRow], *, judge: str) -> tuple[Tree, dict[int, float]]:
    """One task's episodes and judged candidates as a tree, and the mean score of each judged node.

    Candidates that differ only in their thoughts are one node.

    Args:
        rows: of one task, with the same opening.
        judge: its `name@version`.
    """
    tree = Tree(rows[0].first_observation, opening=messages_of(rows[0].opening))
    scores: dict[int, list[float]] = defaultdict(list)
    for row in rows:
        tree, merged = _with_row(tree, row)
        for judged in row.judged:
            if judged.judge == judge:
                step = Step(judged.action, "", reply=_reply(judged))
                at = merged[judged.parent]
                tree, (node_id,) = merge_branch(tree, [step], at=at, source=judge)
                scores[node_id].append(judged.q_value)
    return tree, {node_id: fmean(own) for node_id, own in scores.items()}


def _with_row(tree: Tree, row: TreeRow) -> tuple[Tree, dict[int, int]]:
    """The tree with a row's nodes, and where each of them is in it."""
    own, merged = tree_from_row(row), {ROOT_ID: ROOT_ID}
    for leaf in own.leaves():
        path = own.path(leaf.id)
        tree, branch = merge_branch(tree, [node.step for node in path], source=leaf.source)
        merged |= {node.id: node_id for node, node_id in zip(path, branch, strict=True)}
    return tree, merged


def _reply(judged: JudgedRow) -> Message | None:
    return None if judged.reply is None else judged.reply.to_message()

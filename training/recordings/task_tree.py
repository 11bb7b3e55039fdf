"""The tree of the episodes of one task, and figures on what can be learned from it."""

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import replace
from statistics import fmean

from qguide.qnet.records import TreeRow
from qguide.training.algorithms.backups import bellman_backup, labels_of_actions
from qguide.training.algorithms.tree import Node, Tree, merge_branch, mistakes_of
from qguide.training.data.records import tree_from_row, tree_row
from qguide.training.data.task_trees import opening_hash_of_row, split_task_id

_LEAST_DIFFERENCE = 1e-9
Path = tuple[Node, ...]


ImportedTree = tuple[TreeRow, Counter[str]]
"""The tree of one task, and its figures, named as `recordings.report.ImportReport` has them."""


def build_task_trees(rows: Sequence[TreeRow]) -> list[ImportedTree]:
    """Merge the episodes of one task, each a path; equal beginnings become the same nodes.

    Episodes that open with other messages are in other states, so each opening becomes a tree of
    its own, whose task id ends with a hash of the opening.
    """
    by_opening: dict[str, list[TreeRow]] = defaultdict(list)
    for row in rows:
        by_opening[opening_hash_of_row(row)].append(row)
    return [
        _build_tree(alike, task_id=split_task_id(alike[0].task_id, digest, among=by_opening))
        for digest, alike in by_opening.items()
    ]


def _build_tree(rows: Sequence[TreeRow], *, task_id: str) -> ImportedTree:
    """The tree of episodes with the same opening.

    The longest come first, so that no inner node has an outcome: an episode that another one
    continues was cut short, unless its recording states that it ended there, and the tree keeps the outcome
    of the longer one. For the same reason an episode without its last observation comes after those that
    have it. Rewards of equal episodes are averaged.
    """
    paths = [tree_from_row(row).nodes for row in rows]
    groups: dict[tuple[object, ...], list[Path]] = defaultdict(list)
    for path in paths:
        groups[_said(path)].append(path)
    tree = replace(tree_from_row(rows[0]), nodes=(), children=((),), values={})
    contained = disagreeing = 0
    for equal in sorted(groups.values(), key=_most_recorded_first):
        rewards = [path[-1].step.reward for path in equal]
        disagreeing += max(rewards) - min(rewards) > _LEAST_DIFFERENCE
        known = len(tree.nodes)
        *before, last = (node.step for node in equal[0])
        steps = [*before, replace(last, reward=fmean(rewards))]
        ignored = set.intersection(*(set(mistakes_of(path)) for path in equal))
        tree, branch = merge_branch(tree, steps, source=equal[0][-1].source, mistakes=ignored, episodes=len(equal))
        contained += len(equal) if branch[-1] <= known else 0
    branching, differing, uncertain = _count_branching(tree)
    figures = Counter(
        episodes=len(rows),
        states=sum(bool(children) for children in tree.children),
        branching_states=branching,
        differing_groups=differing,
        repeated_episodes=len(rows) - len(groups),
        contained_episodes=contained,
        disagreeing_episodes=disagreeing,
        uncertain_states=uncertain,
    )
    row = tree_row(
        tree,
        rows[0].model_copy(update={"task_id": task_id}),
        draws=len(rows),
        completion_tokens=sum(row.completion_tokens for row in rows),
    )
    return row, figures


def _said(path: Path) -> tuple[tuple[str, str, bool, bool], ...]:
    """Actions and observations; episodes are equal if these are."""
    steps = [node.step for node in path]
    return tuple((step.key, step.observation, step.unobserved, step.terminated is True) for step in steps)


def _most_recorded_first(equal: Sequence[Path]) -> tuple[int, bool]:
    return -len(equal[0]), equal[0][-1].step.left_open


def _count_branching(tree: Tree) -> tuple[int, int, int]:
    """Numbers of states: branching, branching with different outcomes, and uncertain."""
    values = labels_of_actions(tree, bellman_backup(tree, gamma=1.0))
    branching = differing = uncertain = 0
    for children in tree.children:
        outcomes = {tree.node(child).step.key: values[child] for child in children}
        branching += len(outcomes) > 1
        uncertain += len(outcomes) < len(children)
        differing += len(outcomes) > 1 and max(outcomes.values()) - min(outcomes.values()) > _LEAST_DIFFERENCE
    return branching, differing, uncertain

"""Labels of a tree, and the labelled paths on which a Q model is trained (QLASS section 4.3)."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal, assert_never

from qguide.training.algorithms.bellman import (
    average_outcome,
    bellman_backup,
    branch_outcome,
    normalize,
    outcome_advantage,
)
from qguide.training.algorithms.tree import Node, Tree

BackedUpTarget = Literal["q", "avg", "reward", "progress"]
"""Targets that are computed from a tree's rewards alone."""

TreeTarget = Literal[BackedUpTarget, "mcts", "judge"]
"""`mcts` is the value that a search found and `judge` a judge's score of a served candidate; both
come with their trees."""

BootstrappedTarget = Literal["td", "gae"]
"""AgentPRM's promise and progress, for which a Q model values the tree's actions first."""

Target = Literal[TreeTarget, BootstrappedTarget]


def label_tree(
    tree: Tree,
    *,
    target: BackedUpTarget,
    gamma: float,
    normalized: bool,
    noop_cost_steps: float = 1.0,
) -> dict[int, float]:
    """The label of every node.

    Args:
        tree: one task's tree.
        target: `q` is QLASS's, `avg` and `reward` are its ablations, `progress` is AgentPRM's; only
            `q` is normalised.
        gamma: discount per step; for `q` only.
        normalized: scale `q` to [0, 1] by min-max over the tree.
        noop_cost_steps: see `bellman_backup`; for `q` only.

    Raises:
        EmptyTreeError: the root has no children.
    """
    match target:
        case "q":
            q_values = bellman_backup(tree, gamma=gamma, noop_cost_steps=noop_cost_steps)
            return normalize(q_values) if normalized else q_values
        case "avg":
            return average_outcome(tree)
        case "reward":
            return branch_outcome(tree)
        case "progress":
            return outcome_advantage(tree)
        case _:
            assert_never(target)


@dataclass(frozen=True, slots=True)
class LabelledPath:
    """One root-to-leaf path and its labels.

    Attributes:
        q_values: one per node; None if an earlier path of the tree has the label, or if there is
            none.
    """

    nodes: tuple[Node, ...]
    q_values: tuple[float | None, ...]


def labelled_paths(tree: Tree, labels: Mapping[int, float]) -> Iterator[LabelledPath]:
    """Every root-to-leaf path; a node's label is in the first path through it."""
    owned: set[int] = set()
    for leaf in tree.leaves():
        path = tree.path(leaf.id)
        yield LabelledPath(
            path, tuple(None if node.id in owned else labels.get(node.id) for node in path)
        )
        owned.update(node.id for node in path)


def sibling_groups(tree: Tree) -> Iterator[tuple[int, ...]]:
    """Ids of the actions taken in one state, for each state with at least two."""
    return (children for children in tree.children if len(children) >= 2)

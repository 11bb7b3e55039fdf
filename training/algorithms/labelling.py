"""From a labelled tree to the paths that a Q model reads (QLASS section 3.3)."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal, assert_never

from training.algorithms.bellman import (
    average_outcome,
    bellman_backup,
    branch_outcome,
    normalize,
)
from training.algorithms.tree import Node, Tree

Target = Literal["q", "avg", "reward"]


def label_tree(
    tree: Tree, *, target: Target, gamma: float, normalized: bool, noop_cost_steps: float = 1.0
) -> dict[int, float]:
    """The label of every node.

    Args:
        tree: what was explored of one task.
        target: `q` is QLASS's; `avg` and `reward` are its ablations and stay as they are.
        gamma: discount of `q`.
        normalized: min-max `q` over the tree.
        noop_cost_steps: what an idle step costs, for `q`; see `bellman_backup`.

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
        case _:
            assert_never(target)


@dataclass(frozen=True, slots=True)
class LabelledPath:
    """One root-to-leaf path and the labels that it owns.

    Attributes:
        q_values: one per node; None where an earlier path of the tree owns the label.
    """

    nodes: tuple[Node, ...]
    q_values: tuple[float | None, ...]


def labelled_paths(tree: Tree, labels: Mapping[int, float]) -> Iterator[LabelledPath]:
    """Every root-to-leaf path; each node's label stands in the first that holds it."""
    owned: set[int] = set()
    for leaf in tree.leaves():
        path = tree.path(leaf.id)
        yield LabelledPath(
            path, tuple(None if node.id in owned else labels[node.id] for node in path)
        )
        owned.update(node.id for node in path)


def sibling_groups(tree: Tree) -> Iterator[tuple[int, ...]]:
    """The ids of each set of two or more actions taken from the same state."""
    return (children for children in tree.children if len(children) >= 2)

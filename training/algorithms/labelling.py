"""Labels of a tree, and the labelled paths on which a Q model is trained (QLASS section 4.3).

`bellman_backup` is QLASS's label (equation 7, algorithm 3); `average_outcome` and `branch_outcome`
are the alternatives in its figure 4, and `outcome_advantage` is AgentPRM's progress. All give one
value per node id. The root has no action and so no label.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal, assert_never

from qguide.qnet.errors import EmptyTreeError
from qguide.qnet.records import ROOT_ID
from qguide.training.algorithms.tree import Node, Tree


def bellman_backup(tree: Tree, *, gamma: float, noop_cost_steps: float = 1.0) -> dict[int, float]:
    """Q-value of every node, children before parents.

    Q(s, a) = r + gamma * max_a' Q(s', a'); a leaf keeps its reward.
    (QLASS, equation 7 and algorithm 3.)

    Args:
        tree: if all rewards are in [0, 1] and only leaves have any, Q is in [0, 1] too.
        gamma: discount per environment step, in [0, 1].
        noop_cost_steps: number of steps that an action without effect counts as if it follows
            another one (ours; the paper's is 1). An agent that repeats itself tends to go on doing
            so, because neither the game nor the history tells it anything new.
    """
    require_nodes(tree)
    q: dict[int, float] = {}
    # Nodes are numbered after their parents, so backwards every child comes before its parent.
    for node in reversed(tree.nodes):
        best = max((q[child] for child in tree.children[node.id]), default=0.0)
        steps = noop_cost_steps if tree.idles(node.id) else 1.0
        q[node.id] = node.step.reward + gamma**steps * best
    return q


def normalize(q_values: Mapping[int, float]) -> dict[int, float]:
    """Min-max over one tree: q <- (q - q_min) / (q_max - q_min) (QLASS algorithm 3).

    Equal values stay as they are (ours; the published code writes 0, which labels a tree in which
    every branch succeeds as a failure).
    """
    low, high = min(q_values.values()), max(q_values.values())
    if low == high:
        return dict(q_values)
    return {node_id: (q - low) / (high - low) for node_id, q in q_values.items()}


def average_outcome(tree: Tree) -> dict[int, float]:
    """Mean reward of the leaves at or below every node (Math-Shepherd; target `avg`)."""
    require_nodes(tree)
    totals: dict[int, float] = {}
    counts: dict[int, int] = {}
    for node in reversed(tree.nodes):
        below = tree.children[node.id]
        totals[node.id] = sum(totals[child] for child in below) if below else node.step.reward
        counts[node.id] = sum(counts[child] for child in below) if below else 1
    return {node_id: totals[node_id] / counts[node_id] for node_id in totals}


def outcome_advantage(tree: Tree) -> dict[int, float]:
    """Progress of every action: A(s, a) = Q(s, a) - V(s) (AgentPRM; target `progress`).

    Q is the mean reward of the leaves at or below the node, V that of the leaves below its parent,
    so neither is bootstrapped from a model; `temporal_difference` does that. What all candidates of
    a state share is left out; labels of different states are not comparable.
    """
    q = average_outcome(tree)
    leaves = [leaf.step.reward for leaf in tree.leaves()]
    v = q | {ROOT_ID: sum(leaves) / len(leaves)}
    return {node.id: q[node.id] - v[node.parent] for node in tree.nodes}


def branch_outcome(tree: Tree) -> dict[int, float]:
    """The outcome of a branch, copied to each of its nodes (target `reward`).

    A node that several branches share takes the outcome of the branch that added it.
    """
    require_nodes(tree)
    outcomes: dict[int, float] = {}
    for node in reversed(tree.nodes):
        below = tree.children[node.id]
        outcomes[node.id] = outcomes[below[0]] if below else node.step.reward
    return outcomes


def require_nodes(tree: Tree) -> None:
    """Refuse a tree without actions."""
    if not tree.nodes:
        raise EmptyTreeError("the tree has no action below its root; explore its task again with more draws")


BackedUpTarget = Literal["q", "avg", "reward", "progress"]
"""Targets that are computed from a tree's rewards alone."""

TreeTarget = Literal[BackedUpTarget, "mcts", "judge"]
"""`mcts` is the value that a search found and `judge` a judge's score of a served candidate; both
come with their trees."""

BootstrappedTarget = Literal["td", "gae"]
"""AgentPRM's promise and progress, for which a Q model values the tree's actions first."""

Target = Literal[TreeTarget, BootstrappedTarget]


def label_tree(
    tree: Tree, *, target: BackedUpTarget, gamma: float, normalized: bool, noop_cost_steps: float = 1.0
) -> dict[int, float]:
    """The label of every node.

    Args:
        target: `q` is QLASS's, `avg` and `reward` are its ablations, `progress` is AgentPRM's; only
            `q` is normalised.
        normalized: scale `q` to [0, 1] by min-max over the tree.
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
        yield LabelledPath(path, tuple(None if node.id in owned else labels.get(node.id) for node in path))
        owned.update(node.id for node in path)


def sibling_groups(tree: Tree) -> Iterator[tuple[int, ...]]:
    """Ids of the actions taken in one state, for each state with at least two."""
    return (children for children in tree.children if len(children) >= 2)

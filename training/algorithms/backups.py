"""Labels of a tree, and the labelled paths on which a Q model is trained (QLASS section 4.3).

`bellman_backup` is QLASS's label (equation 7, algorithm 3); `average_outcome` and `branch_outcome`
are the alternatives in its figure 4, and `outcome_advantage` is AgentPRM's progress. All give one
value per node id. The root has no action and so no label.

AgentPRM (Xi et al., 2025) estimates its labels by temporal differences, lambda-returns and advantages by GAE:

    delta(s, a) = r + gamma * V(s') - V(s)
    A(s, a)     = delta(s, a) + gamma * lambda * A(s', a')              (progress)
    Q(s, a)     = A(s, a) + V(s)                                        (promise)

It fits a model M to Q and A, and takes the values from the model itself. On a single trajectory
V(s_t) = M(s_t, a_t), the value of the action that was taken. In a tree a state has several actions,
so V(s) and A(s', a') are means over the children, each weighted by the number of episodes that end below it
(ours). So lambda = 1 and gamma = 1 give `average_outcome`, without any value, and a trajectory gives
GAE (Schulman et al., 2016). V is 0 after a leaf.
Its rounds are those of `pipeline_agentprm.toml`: label with the model before, fit again. The loss on
A beside Q is `progress_weight` in `q_training/loss_terms.py`.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, assert_never

from qguide.qnet.errors import ConfigError, EmptyTreeError
from qguide.qnet.records import ROOT_ID
from qguide.training.algorithms.tree import Node, Tree


def bellman_backup(tree: Tree, *, gamma: float, noop_cost_steps: float = 1.0) -> dict[int, float]:
    """Q-value of every node, children before parents.

    Q(s, a) = r + gamma * max_a' Q(s', a'); a leaf keeps its reward.
    (QLASS, equation 7 and algorithm 3.)

    The paper's environments are deterministic. Where a recorded a' was answered in several ways, Q(s', a')
    is the mean over them, as often as each came (ours): the best of them would be luck.

    Args:
        tree: if all rewards are in [0, 1] and only leaves have any, Q is in [0, 1] too.
        gamma: discount per environment step, in [0, 1].
        noop_cost_steps: number of steps that an action without effect counts as if it follows
            another one (ours; the paper's is 1). An agent that repeats itself tends to go on doing
            so, because neither the game nor the history tells it anything new.
    """
    require_nodes(tree)
    q: dict[int, float] = {}
    ends = leaf_counts(tree)
    # Nodes are numbered after their parents, so backwards every child comes before its parent.
    for node in reversed(tree.nodes):
        best = max(
            (
                q[same[0]] if len(same) == 1 else _mean(same, q, ends)
                for same in _by_action(tree, tree.children[node.id])
            ),
            default=0.0,
        )
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
    """Mean reward of the episodes that end at or below every node (Math-Shepherd; target `avg`)."""
    require_nodes(tree)
    totals: dict[int, float] = {}
    for node in reversed(tree.nodes):
        below = tree.children[node.id]
        totals[node.id] = sum(totals[child] for child in below) if below else node.step.reward * node.count
    leaves = leaf_counts(tree)
    return {node_id: total / leaves[node_id] for node_id, total in totals.items()}


def outcome_advantage(tree: Tree) -> dict[int, float]:
    """Progress of every action: A(s, a) = Q(s, a) - V(s) (AgentPRM; target `progress`).

    Q is the mean reward of the episodes through the node, V that of the episodes through its parent,
    so neither is bootstrapped from a model; `gae_advantages` does that. What all candidates of
    a state share is left out; labels of different states are not comparable.
    """
    q = average_outcome(tree)
    leaves = list(tree.leaves())
    v = q | {ROOT_ID: sum(leaf.step.reward * leaf.count for leaf in leaves) / sum(leaf.count for leaf in leaves)}
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


def outcomes_behind(tree: Tree, labels: Mapping[int, float], *, target: str) -> Mapping[int, float]:
    """Outcomes behind the labels of a tree, neither discounted nor scaled to its range.

    Labels that teach may be both: `q` is then gamma to the steps left, between the worst and the best
    of its tree, so that a slow success counts less and every tree has a success. What judges is the
    reward: what the best actions bring that follow an action for `q`, the mean of the episodes through it for
    `td`, `gae` and `progress`. Those of other targets, one's own among them, are outcomes as they are.
    """
    match target:
        case "q":
            return bellman_backup(tree, gamma=1.0)
        case "td" | "gae" | "progress":
            return lambda_returns(tree, {}, gamma=1.0, gae_lambda=1.0)
        case _:
            return labels


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


def lambda_returns(tree: Tree, values: Mapping[int, float], *, gamma: float, gae_lambda: float) -> dict[int, float]:
    """Q(s, a) of every node: r + gamma * ((1 - lambda) V(s') + lambda * mean of Q(s', a')).

    This is the sum of the advantages above and V(s), with V cancelled out.

    Args:
        values: M(s, a) of every node; may be empty if `gae_lambda` is 1.
        gae_lambda: weight of what happened against what the model expected, in [0, 1].
    """
    require_nodes(tree)
    leaves = leaf_counts(tree)
    returns: dict[int, float] = {}
    for node in reversed(tree.nodes):
        below = tree.children[node.id]
        after = gae_lambda * _mean(below, returns, leaves) if below else 0.0
        if below and gae_lambda < 1:
            after += (1 - gae_lambda) * _mean(below, _required(values, below), leaves)
        returns[node.id] = node.step.reward + gamma * after
    return returns


def gae_advantages(tree: Tree, values: Mapping[int, float], *, gamma: float, gae_lambda: float) -> dict[int, float]:
    """A(s, a) of every node: `lambda_returns` minus V(s), the mean of M over the state's actions.

    Without values (`gae_lambda` = 1), V(s) is the mean return of the state's actions, so that the
    labels are those of `outcome_advantage` if gamma is 1 too.
    """
    returns = lambda_returns(tree, values, gamma=gamma, gae_lambda=gae_lambda)
    leaves = leaf_counts(tree)
    before: dict[int, float] = {}
    for parent in (ROOT_ID, *(node.id for node in tree.nodes)):
        if below := tree.children[parent]:
            known = _required(values, below) if values else returns
            before[parent] = _mean(below, known, leaves)
    return {node.id: returns[node.id] - before[node.parent] for node in tree.nodes}


def _mean(siblings: Sequence[int], values: Mapping[int, float], leaves: Mapping[int, int]) -> float:
    total = sum(leaves[node_id] for node_id in siblings)
    return sum(leaves[node_id] * values[node_id] for node_id in siblings) / total


def leaf_counts(tree: Tree) -> dict[int, int]:
    """Number of episodes that end in the leaves at or below every node."""
    counts: dict[int, int] = {}
    for node in reversed(tree.nodes):
        counts[node.id] = sum(counts[child] for child in tree.children[node.id]) or node.count
    return counts


def labels_of_actions(tree: Tree, labels: Mapping[int, float]) -> Mapping[int, float]:
    """Labels before the answer is known: equal actions of a state have the mean of theirs.

    Each answer counts as often as it came. Labels of actions that were answered in one way, as all are in a
    deterministic environment, stay as they are.
    """
    ends = leaf_counts(tree)
    pooled = dict(labels)
    for family in sibling_groups(tree):
        for same in _by_action(tree, [child for child in family if child in labels]):
            if len(same) > 1:
                pooled |= dict.fromkeys(same, _mean(same, labels, ends))
    return pooled


def _by_action(tree: Tree, siblings: Sequence[int]) -> Iterable[Sequence[int]]:
    """Siblings together that are the same action with different answers."""
    if len(siblings) < 2:
        return (siblings,) if siblings else ()
    found: dict[str, list[int]] = {}
    for child in siblings:
        found.setdefault(tree.node(child).step.key, []).append(child)
    return found.values()


def _required(values: Mapping[int, float], node_ids: tuple[int, ...]) -> Mapping[int, float]:
    missing = [node_id for node_id in node_ids if node_id not in values]
    if missing:
        raise ConfigError(
            f"node {missing[0]} has no value of a model, which labels with gae_lambda below 1 are "
            "made of; name a Q model as qnet, or set gae_lambda to 1"
        )
    return values

"""Temporal-difference labels of a tree: lambda-returns and advantages by GAE (AgentPRM).

    delta(s, a) = r + gamma * V(s') - V(s)
    A(s, a)     = delta(s, a) + gamma * lambda * A(s', a')              (progress)
    Q(s, a)     = A(s, a) + V(s)                                        (promise)

AgentPRM estimates its labels so: it fits a model M to Q and A, and takes the values from the model
itself. On a single trajectory V(s_t) = M(s_t, a_t), the value of the action that was taken. In a
tree a state has several actions, so V(s) and A(s', a') are means over the children, each weighted
by the number of leaves below it (ours). So lambda = 1 and gamma = 1 give `average_outcome`, without
any value, and a trajectory gives GAE (Schulman et al., 2016). V is 0 after a leaf.
"""

from collections.abc import Mapping

from qguide.qnet.errors import ConfigError
from qguide.qnet.records import ROOT_ID
from qguide.training.algorithms.labelling import require_nodes
from qguide.training.algorithms.tree import Tree


def lambda_returns(tree: Tree, values: Mapping[int, float], *, gamma: float, gae_lambda: float) -> dict[int, float]:
    """Q(s, a) of every node: r + gamma * ((1 - lambda) V(s') + lambda * mean of Q(s', a')).

    This is the sum of the advantages above and V(s), with V cancelled out.

    Args:
        values: M(s, a) of every node; may be empty if `gae_lambda` is 1.
        gae_lambda: weight of what happened against what the model expected, in [0, 1].
    """
    require_nodes(tree)
    leaves = _leaf_counts(tree)
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
    leaves = _leaf_counts(tree)
    before: dict[int, float] = {}
    for parent in (ROOT_ID, *(node.id for node in tree.nodes)):
        if below := tree.children[parent]:
            known = _required(values, below) if values else returns
            before[parent] = _mean(below, known, leaves)
    return {node.id: returns[node.id] - before[node.parent] for node in tree.nodes}


def _mean(siblings: tuple[int, ...], values: Mapping[int, float], leaves: Mapping[int, int]) -> float:
    """Mean of the siblings' values, each weighted by its number of leaves."""
    total = sum(leaves[node_id] for node_id in siblings)
    return sum(leaves[node_id] * values[node_id] for node_id in siblings) / total


def _leaf_counts(tree: Tree) -> dict[int, int]:
    """Number of leaves at or below every node."""
    counts: dict[int, int] = {}
    for node in reversed(tree.nodes):
        counts[node.id] = sum(counts[child] for child in tree.children[node.id]) or 1
    return counts


def _required(values: Mapping[int, float], node_ids: tuple[int, ...]) -> Mapping[int, float]:
    missing = [node_id for node_id in node_ids if node_id not in values]
    if missing:
        raise ConfigError(
            f"node {missing[0]} has no value of a model, which labels with gae_lambda below 1 are "
            "made of; name a Q model as qnet, or set gae_lambda to 1"
        )
    return values

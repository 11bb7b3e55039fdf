"""Monte Carlo tree search on an exploration tree: selection, backup, Q (StepQ 3.1).

    UCT(s) = V(s) + sqrt(eta * ln N(parent) / N(s))                     (equation 4)
    V(s) <- (V(s) * (N(s) - 1) + r) / N(s)                              (equation 5)
    Q(s_t, a_t) = V(s_{t+1})                                            (equation 6)

Drawing, stepping and rolling out are the caller's; see `qguide.training.exploration.mcts`.
"""

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field
from math import inf, log, sqrt
from types import MappingProxyType

from qguide.qnet.records import ROOT_ID
from qguide.training.algorithms.tree import Tree


@dataclass(frozen=True, slots=True)
class SearchStatistics:
    """Visit counts N and mean values V by node id, the root's included.

    A node that was never visited is missing.
    """

    visit_counts: Mapping[int, int] = field(default_factory=lambda: MappingProxyType({}))
    values: Mapping[int, float] = field(default_factory=lambda: MappingProxyType({}))

    @property
    def q_values(self) -> dict[int, float]:
        """Q̂ of every visited action: the value of the state that it leads to."""
        return {node_id: v for node_id, v in self.values.items() if node_id != ROOT_ID}


def select_child(tree: Tree, statistics: SearchStatistics, node_id: int, *, eta: float) -> int:
    """The child of highest UCT; ties go to the oldest, and unvisited children come first.

    Args:
        tree: the tree; the node must have a child.
        statistics: of the search so far.
        node_id: a visited node.
        eta: weight of exploration; 0 is greedy.
    """
    counts, total = statistics.visit_counts, statistics.visit_counts.get(node_id, 0)

    def uct(child: int) -> float:
        if not counts.get(child):
            return inf
        return statistics.values[child] + sqrt(eta * log(max(total, 1)) / counts[child])

    return max(tree.children[node_id], key=uct)


def select_path(
    tree: Tree, statistics: SearchStatistics, expanded: Set[int], *, eta: float
) -> tuple[int, ...]:
    """Node ids from the root down to the first node that is not expanded.

    Nodes added by roll-outs count as unexpanded until their own candidates are drawn.
    """
    path = [ROOT_ID]
    while path[-1] in expanded and tree.children[path[-1]]:
        path.append(select_child(tree, statistics, path[-1], eta=eta))
    return tuple(path)


def back_up(statistics: SearchStatistics, path: Sequence[int], outcome: float) -> SearchStatistics:
    """Statistics with one more visit of every node of a path, which ended with this outcome."""
    counts, values = dict(statistics.visit_counts), dict(statistics.values)
    for node_id in path:
        counts[node_id] = counts.get(node_id, 0) + 1
        before = values.get(node_id, 0.0)
        values[node_id] = before + (outcome - before) / counts[node_id]
    return SearchStatistics(MappingProxyType(counts), MappingProxyType(values))

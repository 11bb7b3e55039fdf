"""Preference pairs from values: among the candidates of a state, and along a tree's best path."""

from collections.abc import Hashable, Iterable, Mapping, Sequence
from heapq import nsmallest
from itertools import permutations
from typing import NamedTuple

from qguide.training.algorithms.tree import Tree


class Preference(NamedTuple):
    """The better and the worse of two, by index or by node id."""

    better: int
    worse: int


def value_pairs(
    values: Sequence[float], *, min_margin: float, most: int = 0, sides: Sequence[Hashable] | None = None
) -> list[Preference]:
    """Index pairs of all candidates whose values differ enough.

    Args:
        values: of the candidates of one state, or outcomes of the episodes of one task.
        min_margin: smallest difference that makes a pair, above 0.
        most: pairs that are kept, those of the largest differences, the first of equal ones; 0
            keeps all.
        sides: one per candidate; two candidates of the same side are not compared.
    """
    pairs: Iterable[Preference] = (
        Preference(better, worse)
        for better, worse in permutations(range(len(values)), 2)
        if values[better] - values[worse] >= min_margin and (sides is None or sides[better] != sides[worse])
    )
    if most:  # no more are held: thousands of episodes make millions of pairs
        pairs = nsmallest(most, pairs, key=lambda pair: values[pair.worse] - values[pair.better])
    return sorted(pairs)


def best_path_pairs(tree: Tree, values: Mapping[int, float], *, min_margin: float) -> list[Preference]:
    """Step-level pairs of a tree: a node of the best path, and its worst sibling (StepQ 3.2).

    The best path leads to the leaf of highest reward, the first of equal ones. A tree without a
    positive reward gives nothing (ours).

    Args:
        values: Q̂ of the nodes; one without a value was never visited: it is no
            sibling, and the path ends before it.

    Returns:
        Pairs of node ids, those of the root's children first.
    """
    best = max(tree.leaves(), key=lambda leaf: leaf.step.reward, default=None)
    if best is None or best.step.reward <= 0:
        return []
    pairs = []
    for node in tree.path(best.id):
        if node.id not in values:
            break
        siblings = [
            i
            for i in tree.children[node.parent]
            # An action that had several observations is no alternative to itself.
            if tree.node(i).step.key != node.step.key and i in values
        ]
        worst = min(siblings, key=values.__getitem__, default=None)
        if worst is not None and values[node.id] - values[worst] >= min_margin:
            pairs.append(Preference(node.id, worst))
    return pairs

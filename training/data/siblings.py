"""Decisions between siblings: states that the episodes of a labelled tree left differently."""

from collections import defaultdict
from collections.abc import Iterable
from statistics import fmean

from qguide.training.algorithms.backups import leaf_counts, outcomes_behind
from qguide.training.algorithms.choice_quality import PlacedChoice, ScoredChoice
from qguide.training.data.records import LabelledTree


def sibling_choices(labelled: LabelledTree, places: Iterable[tuple[int, int]]) -> list[PlacedChoice]:
    """States with several labelled actions as choices, without steps.

    An action counts as drawn once for each episode that ends below it. Its value is the outcome behind its label
    (`outcomes_behind`), and the mean of those where one action was observed to do different things.

    Args:
        places: node ids, each with the place where its Q is read; equal actions of a state have one place.
    """
    tree = labelled.tree
    families: dict[int, dict[int, list[int]]] = defaultdict(lambda: defaultdict(list))
    for node_id, place in places:
        families[tree.node(node_id).parent][place].append(node_id)
    leaves, outcomes = leaf_counts(tree), outcomes_behind(tree, labelled.labels, target=labelled.target)
    found: list[PlacedChoice] = []
    for family in families.values():
        draws = [[leaves[node_id] for node_id in same] for same in family.values()]
        ends = [[outcomes[node_id] for node_id in same] for same in family.values()]
        choice = ScoredChoice(
            q_values=(),
            steps=(),
            valid=tuple(tree.node(same[0]).step.valid for same in family.values()),
            draws=tuple(map(sum, draws)),
            values=tuple(fmean(own, weights=counts) for own, counts in zip(ends, draws, strict=True)),
            task=labelled.task_id,
        )
        if len(family) > 1:
            found.append(PlacedChoice(tuple(family), choice))
    return found

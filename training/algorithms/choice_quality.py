"""Quality of choices by Q-values among the candidates of a state, without playing an episode.

Sibling accuracy over all trees hides the choices that matter: those among candidates that one
policy drew in one state. These figures are of such groups alone.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import permutations
from math import nan, sqrt


@dataclass(frozen=True, slots=True)
class Group:
    """Candidates of one state.

    Attributes:
        q_values: of each.
        steps: to the goal after each; fewer are better.
        valid: False where a candidate means nothing to the environment.
    """

    q_values: Sequence[float]
    steps: Sequence[float]
    valid: Sequence[bool]

    @property
    def chosen(self) -> int:
        """Index of the highest Q, the first of several."""
        return max(range(len(self.q_values)), key=self.q_values.__getitem__)


def choice_quality(groups: Sequence[Group]) -> dict[str, float]:
    """Figures over all groups; one without a case is left out.

    Returns:
        `spearman`: mean rank correlation of Q with fewer steps, of groups in which both differ.
        `regret_steps`: steps after the candidate of highest Q minus those after the best;
        `..._of_random` is that of a random one. `pairs_in_order`: share of pairs with different
        steps in which the better one has the higher Q (a tie counts half);
        `valid_above_invalid`: the same for pairs of a valid and an invalid one. `invalid_chosen`,
        `invalid_of_random`: share of choices that are invalid.
    """
    figures = {
        "spearman": _mean(groups, _spearman),
        "regret_steps": _mean(groups, lambda g: g.steps[g.chosen] - min(g.steps)),
        "regret_steps_of_random": _mean(groups, lambda g: _average(g.steps) - min(g.steps)),
        "pairs_in_order": _share(groups, lambda g, a, b: g.steps[a] < g.steps[b]),
        "valid_above_invalid": _share(groups, lambda g, a, b: g.valid[a] and not g.valid[b]),
        "invalid_chosen": _mean(groups, lambda g: float(not g.valid[g.chosen])),
        "invalid_of_random": _mean(groups, lambda g: 1 - _average(g.valid)),
    }
    known = {name: value for name, value in figures.items() if value == value}
    return {"decisions": float(len(groups)), **known}


def _spearman(group: Group) -> float:
    """Pearson's correlation of the ranks, ties sharing theirs; nan where one side is constant."""
    q, steps = _ranks(group.q_values), _ranks([-s for s in group.steps])
    centre = (len(q) - 1) / 2
    q, steps = [rank - centre for rank in q], [rank - centre for rank in steps]
    scale = sqrt(sum(a * a for a in q) * sum(b * b for b in steps))
    return sum(a * b for a, b in zip(q, steps, strict=True)) / scale if scale else nan


def _ranks(values: Sequence[float]) -> list[float]:
    return [
        sum(other < value for other in values) + (sum(other == value for other in values) - 1) / 2
        for value in values
    ]


def _mean(groups: Sequence[Group], figure: Callable[[Group], float]) -> float:
    """Mean over the groups that have the figure."""
    known = [value for group in groups if (value := figure(group)) == value]
    return _average(known) if known else nan


def _share(groups: Sequence[Group], better: Callable[[Group, int, int], bool]) -> float:
    """Share of the pairs (a, b) with a better than b in which a has the higher Q."""
    right = [
        (group.q_values[a] > group.q_values[b]) + 0.5 * (group.q_values[a] == group.q_values[b])
        for group in groups
        for a, b in permutations(range(len(group.steps)), 2)
        if better(group, a, b)
    ]
    return _average(right) if right else nan


def _average(values: Sequence[float]) -> float:
    return sum(values) / len(values)

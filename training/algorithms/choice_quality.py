"""Quality of a scorer's choices among the candidates of a state, without playing an episode.

Sibling accuracy over whole trees hides the choices that matter: those among the candidates that
one policy drew in one state. These figures cover such choices only.

The value of a candidate follows from how its continuations ended: `discounted_value` is the papers'
gamma^n, which barely separates actions far from the goal; `linear_value` charges the same for every
step, so a wasted step costs the same everywhere.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from math import sqrt
from statistics import fmean, pvariance
from typing import Literal, NamedTuple

import numpy as np
import scipy


@dataclass(frozen=True, slots=True)
class ScoredChoice:
    """The candidates of one state, with a scorer's values.

    Attributes:
        q_values: one per candidate; empty before a scorer has read them.
        steps: to the goal after each candidate; fewer are better.
        valid: False where the environment did not understand the action.
        draws: how often each candidate was drawn; empty if unknown.
        greedy: index of the policy's greedy reply; None if it was not drawn, or unknown.
        after_invalid: the action before this state was invalid.
        values: label of each candidate, more is better; empty if unknown.
        logprobs: log-likelihood of each by the policy; None or empty if unknown.
        task: its id; "" if unknown.
    """

    q_values: Sequence[float]
    steps: Sequence[float]
    valid: Sequence[bool]
    draws: Sequence[int] = ()
    greedy: int | None = None
    after_invalid: bool = False
    values: Sequence[float] = ()
    logprobs: Sequence[float | None] = ()
    task: str = ""

    @property
    def chosen(self) -> int:
        """Index of the highest value, the first of equal ones."""
        return max(range(len(self.q_values)), key=self.q_values.__getitem__)

    @property
    def regret_steps(self) -> float:
        """Steps that the choice costs more than the best candidate."""
        return self.steps[self.chosen] - min(self.steps)

    @property
    def spearman(self) -> float | None:
        """Rank correlation of values and fewer steps; None if all candidates need the same.

        Constant values count 0.
        """
        if len(set(self.steps)) < 2:
            return None
        if len(set(self.q_values)) < 2:
            return 0.0
        saved = scipy.stats.rankdata([-steps for steps in self.steps])
        return float(np.corrcoef(saved, scipy.stats.rankdata(self.q_values))[0, 1])


class PlacedChoice(NamedTuple):
    """A choice between candidates that lie in a packed row.

    Attributes:
        places: for each candidate, the index of its value among those of the row.
        choice: what is known of the candidates without a scorer.
    """

    places: tuple[int, ...]
    choice: ScoredChoice

    def scored(self, values: Sequence[float]) -> ScoredChoice:
        """The choice by a scorer's values of the row."""
        return replace(self.choice, q_values=[values[place] for place in self.places])


def choice_quality(choices: Sequence[ScoredChoice]) -> dict[str, float]:
    """Figures over all choices; a figure that no choice contributes to is left out.

    Returns:
        `regret_steps`: steps that the choice costs more than the best candidate, averaged over the
        choices; `..._of_greedy`, `..._of_random_distinct` and `..._of_random_draw` are those of
        the greedy candidate, of a random distinct candidate and of a random draw.
        `pair_accuracy`: share of pairs with different steps in which the better candidate has the
        higher value (a tie counts half), over `pairs` pairs; `pair_accuracy_by_gap` weights each
        pair by its difference in steps. `valid_above_invalid`: the same share of the
        `validity_pairs`, those of a valid and an invalid candidate.
        `spearman`: mean rank correlation of values and fewer steps within a state, over the states
        whose candidates do not all need the same steps.
        `invalid_rate`: share of choices that are invalid, with the same three baselines;
        `invalid_after_invalid`: that share where the action before was invalid too.
    """
    figures = _regrets(choices) | _orders(choices) | _invalid_rates(choices)
    known = {name: value for name, value in figures.items() if value is not None}
    return {"decisions": len(choices), **known}


def spread_of(choices: Sequence[ScoredChoice]) -> float:
    """Standard deviation of a scorer's values between the candidates of a state, over all states."""
    return sqrt(fmean(pvariance(choice.q_values) for choice in choices))


def _regrets(choices: Sequence[ScoredChoice]) -> dict[str, float | None]:
    def regret(choice: ScoredChoice, steps: float) -> float:
        return steps - min(choice.steps)

    drawn = [c for c in choices if c.draws]
    return {
        "regret_steps": _mean([regret(c, c.steps[c.chosen]) for c in choices]),
        "regret_steps_of_greedy": _mean([regret(c, c.steps[i]) for c, i in _greedy(choices)]),
        "regret_steps_of_random_distinct": _mean([regret(c, fmean(c.steps)) for c in choices]),
        "regret_steps_of_random_draw": _mean([regret(c, _mean_draw(c, c.steps)) for c in drawn]),
    }


def _orders(choices: Sequence[ScoredChoice]) -> dict[str, float | None]:
    gaps, orders, by_validity = [], [], []
    for choice in choices:
        for a, b in combinations(range(len(choice.steps)), 2):
            if choice.steps[a] != choice.steps[b]:
                better, worse = (a, b) if choice.steps[a] < choice.steps[b] else (b, a)
                gaps.append(choice.steps[worse] - choice.steps[better])
                orders.append(_order(choice, better, worse))
            if choice.valid[a] != choice.valid[b]:
                valid, invalid = (a, b) if choice.valid[a] else (b, a)
                by_validity.append(_order(choice, valid, invalid))
    return {
        "pairs": len(orders),
        "pair_accuracy": _mean(orders),
        "pair_accuracy_by_gap": fmean(orders, weights=gaps) if gaps else None,
        "validity_pairs": len(by_validity),
        "valid_above_invalid": _mean(by_validity),
        "spearman": _mean([c.spearman for c in choices if c.spearman is not None]),
    }


def _invalid_rates(choices: Sequence[ScoredChoice]) -> dict[str, float | None]:
    after_invalid = [c for c in choices if c.after_invalid]
    return {
        "invalid_rate": _mean([not c.valid[c.chosen] for c in choices]),
        "invalid_rate_of_greedy": _mean([not c.valid[i] for c, i in _greedy(choices)]),
        "invalid_rate_of_random_distinct": _mean([1 - fmean(c.valid) for c in choices]),
        "invalid_rate_of_random_draw": _mean([1 - _mean_draw(c, c.valid) for c in choices if c.draws]),
        "invalid_after_invalid": _mean([not c.valid[c.chosen] for c in after_invalid]),
        "invalid_after_invalid_of_random_distinct": _mean([1 - fmean(c.valid) for c in after_invalid]),
    }


def _greedy(choices: Sequence[ScoredChoice]) -> list[tuple[ScoredChoice, int]]:
    return [(choice, choice.greedy) for choice in choices if choice.greedy is not None]


def _mean(values: Sequence[float]) -> float | None:
    return float(fmean(values)) if values else None


def _mean_draw(choice: ScoredChoice, values: Sequence[float]) -> float:
    return fmean(values, weights=choice.draws)


def _order(choice: ScoredChoice, better: int, worse: int) -> float:
    """1 if the better candidate has the higher value, 0.5 for a tie."""
    q_better, q_worse = choice.q_values[better], choice.q_values[worse]
    return 0.5 if q_better == q_worse else float(q_better > q_worse)


ValueScale = Literal["linear", "discounted"]


@dataclass(frozen=True, slots=True)
class Ending:
    """Outcome of one continuation.

    Attributes:
        outcome_reward: in [0, 1].
        steps: number of steps; the caller decides whether they include the valued action.
    """

    outcome_reward: float
    steps: float


def steps_left(endings: Sequence[Ending], *, horizon: float, extra_steps: float = 0.0) -> float:
    """Mean steps to the goal: `horizon` for a failure, at most `horizon` for a success.

    Args:
        endings: one per continuation; a graded outcome r counts r times as a success and 1 - r
            times as a failure.
        horizon: steps counted for a failure.
        extra_steps: added to each, after the cut at `horizon`.
    """
    left = [horizon - ending.outcome_reward * (horizon - min(ending.steps, horizon)) for ending in endings]
    return sum(left) / len(left) + extra_steps


def linear_value(steps: float, *, step_cost: float) -> float:
    """1 at the goal, and `step_cost` less for every step still to go."""
    return 1.0 - step_cost * steps


def discounted_value(endings: Sequence[Ending], *, gamma: float, extra_steps: float = 0.0) -> float:
    """Mean of outcome_reward * gamma^steps."""
    values = [e.outcome_reward * float(gamma ** (e.steps + extra_steps)) for e in endings]
    return sum(values) / len(values)

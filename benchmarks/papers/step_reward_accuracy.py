"""Accuracy of step rewards from few roll-outs, and their mean at each step (IPR figures 3 and 4).

The paper judges step rewards by a heuristic for good and bad actions. Here many roll-outs of the
same states are the judge (ours): the first n of them estimate the rewards, and all others are the
reference, so that no roll-out is on both sides.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from statistics import fmean


@dataclass(frozen=True, slots=True)
class RolledOut:
    """An action's roll-outs.

    Attributes:
        outcomes: outcome reward of each roll-out, in the order in which they were drawn.
        exact: the action ended the episode, so that its only outcome is its reward.
    """

    outcomes: Sequence[float]
    exact: bool = False

    def estimate(self, rollouts: int) -> float:
        """Mean outcome of the first roll-outs."""
        return fmean(self.outcomes if self.exact else self.outcomes[:rollouts])

    def reference(self, rollouts: int) -> float:
        """Mean outcome of all other roll-outs."""
        return fmean(self.outcomes if self.exact else self.outcomes[rollouts:])


@dataclass(frozen=True, slots=True)
class RewardAccuracy:
    """Accuracy of step rewards that are means of so many roll-outs.

    Attributes:
        pairs: number of pairs of actions in one state whose references differ enough.
        accuracy: share of them that the estimates order as the references do; a tie counts half.
        error: mean absolute difference of estimate and reference, over the actions that were rolled
            out. An exact reward has none, however few roll-outs there are.
    """

    rollouts: int
    pairs: int
    accuracy: float | None
    error: float | None


def reward_accuracy(states: Sequence[Sequence[RolledOut]], *, rollouts: int, min_gap: float) -> RewardAccuracy:
    """Accuracy over all states.

    Args:
        states: the actions of each state. Those that do not have more roll-outs than `rollouts` are
            left out, as nothing would be left to judge them by.
        rollouts: number of roll-outs of an estimate (N).
        min_gap: smallest difference of two references that makes a pair, above 0.
    """
    orders: list[float] = []
    errors: list[float] = []
    for actions in states:
        known: list[tuple[float, float]] = []
        for action in actions:
            if action.exact or len(action.outcomes) > rollouts:
                known.append((action.estimate(rollouts), action.reference(rollouts)))
                if not action.exact:
                    errors.append(abs(known[-1][0] - known[-1][1]))
        for one, other in combinations(known, 2):
            better, worse = (one, other) if one[1] > other[1] else (other, one)
            if better[1] - worse[1] >= min_gap:
                orders.append(0.5 if better[0] == worse[0] else float(better[0] > worse[0]))
    return RewardAccuracy(rollouts, len(orders), fmean(orders) if orders else None, fmean(errors) if errors else None)


@dataclass(frozen=True, slots=True)
class StepMean:
    """Mean reward of the actions that trajectories took at one step, numbered from 1."""

    step: int
    trajectories: int
    mean: float


def mean_by_step(trajectories: Sequence[Sequence[float | None]]) -> list[StepMean]:
    """Mean reward at each step that has one in some trajectory; None is no reward."""
    by_step: dict[int, list[float]] = defaultdict(list)
    for rewards in trajectories:
        for step, reward in enumerate(rewards, start=1):
            if reward is not None:
                by_step[step].append(reward)
    return [StepMean(step, len(all_), fmean(all_)) for step, all_ in sorted(by_step.items())]

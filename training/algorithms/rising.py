"""Reward rising sampling: draw a step's actions until the reward rises (RRO algorithm 1).

    draw a_t ~ pi( . | e_1:t-1) until r(s_t, a_t) >= r(s_t-1, a_t-1)
    chosen: the draw with the highest reward; rejected: the one with the lowest

The paper draws without a limit; the limit here is ours, because a reward that stands at its highest
value by chance may never be reached again.
"""

from collections.abc import Sequence
from typing import Final, Literal, NamedTuple

from qguide.training.algorithms.preferences import Preference

StopRule = Literal["rising", "never"]
"""Stop at the first reward that has not fallen (RRO), or only at the limit (fixed size)."""

THIRDS: Final = ("initial", "middle", "final")


class StepCount(NamedTuple):
    """Counts of a trajectory's steps, to be added up over trajectories."""

    rising: int
    steps: int


def draws_another(
    rewards: Sequence[float], *, before: float, max_draws: int, stop: StopRule
) -> bool:
    """True if a step needs one more draw.

    Args:
        rewards: of the draws so far.
        before: reward of the step before; of the task itself at the first step.
        max_draws: most draws of a step.
        stop: the rule.
    """
    risen = stop == "rising" and bool(rewards) and rewards[-1] >= before
    return not risen and len(rewards) < max_draws


def extreme_pair(rewards: Sequence[float]) -> Preference | None:
    """The draws with the highest and the lowest reward, the first of equal ones.

    None if all rewards are equal, because then nothing is preferred.
    """
    numbers = range(len(rewards))
    best = max(numbers, key=rewards.__getitem__)
    worst = min(numbers, key=rewards.__getitem__)
    return Preference(best, worst) if rewards[best] > rewards[worst] else None


def rising_shares(rewards: Sequence[float]) -> tuple[StepCount, StepCount, StepCount]:
    """Steps whose reward rises, by third of the trajectory (RRO table 2).

    Args:
        rewards: (n + 1,) of the task itself, then of each step that the trajectory took.

    Returns:
        (rising steps, steps) of each of `THIRDS`; rising is strictly above the step before. Step t
        of n is in third floor(3 (t - 1) / n).
    """
    steps = len(rewards) - 1
    rising, counts = [0, 0, 0], [0, 0, 0]
    for step in range(steps):
        third = 3 * step // steps
        counts[third] += 1
        rising[third] += rewards[step + 1] > rewards[step]
    first, second, third_ = (StepCount(*pair) for pair in zip(rising, counts, strict=True))
    return first, second, third_

"""Value of an action, from how its episode ended when it was played on.

`discounted` is the papers' gamma^n, which hardly tells actions apart far from the goal. `linear`
counts every step alike, so that one wasted step costs the same wherever it is wasted.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

ValueScale = Literal["linear", "discounted"]


@dataclass(frozen=True, slots=True)
class Ending:
    """End of one continuation.

    Attributes:
        outcome_reward: in [0, 1]; 0 where a limit cut it off.
        steps: after the action that is valued.
    """

    outcome_reward: float
    steps: float


def steps_left(endings: Sequence[Ending], *, horizon: int, extra_steps: float = 0.0) -> float:
    """Mean steps to the goal: `horizon` where it was not reached, at most that otherwise.

    Args:
        horizon: steps that a failure counts as.
        extra_steps: added to each, after the cut.
    """
    left = [
        horizon - ending.outcome_reward * (horizon - min(ending.steps, horizon))
        for ending in endings
    ]
    return sum(left) / len(left) + extra_steps


def linear_value(steps: float, *, step_cost: float) -> float:
    """1 at the goal, `step_cost` less for every step that is left."""
    return 1.0 - step_cost * steps


def discounted_value(endings: Sequence[Ending], *, gamma: float, extra_steps: float = 0.0) -> float:
    """Mean of outcome_reward * gamma^steps."""
    values = [e.outcome_reward * float(gamma ** (e.steps + extra_steps)) for e in endings]
    return sum(values) / len(values)

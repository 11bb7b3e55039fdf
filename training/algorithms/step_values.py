"""Value of an action, computed from how its continuations ended.

`discounted` is the papers' gamma^n, which barely separates actions far from the goal. `linear`
charges the same for every step, so a wasted step costs the same everywhere.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

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
    left = [
        horizon - ending.outcome_reward * (horizon - min(ending.steps, horizon))
        for ending in endings
    ]
    return sum(left) / len(left) + extra_steps


def linear_value(steps: float, *, step_cost: float) -> float:
    """1 at the goal, and `step_cost` less for every step still to go."""
    return 1.0 - step_cost * steps


def discounted_value(endings: Sequence[Ending], *, gamma: float, extra_steps: float = 0.0) -> float:
    """Mean of outcome_reward * gamma^steps."""
    values = [e.outcome_reward * float(gamma ** (e.steps + extra_steps)) for e in endings]
    return sum(values) / len(values)

"""Value of an action, from the ends of its continuations.

`discounted` is the papers' gamma^n, which hardly tells actions apart far from the goal. `linear`
counts all steps alike, so that a wasted step costs the same everywhere.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

ValueScale = Literal["linear", "discounted"]


@dataclass(frozen=True, slots=True)
class Ending:
    """End of one continuation.

    Attributes:
        outcome_reward: in [0, 1].
        steps: after the action that is valued.
    """

    outcome_reward: float
    steps: float


def steps_left(endings: Sequence[Ending], *, horizon: int, extra_steps: float = 0.0) -> float:
    """Mean steps to the goal; `horizon` for a failure, and at most `horizon` for a success.

    Args:
        endings: one per continuation; a graded outcome is between success and failure.
        horizon: steps of a failure.
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

"""Credit evidence: actions that a Q model prefers beside what they earned beyond expectation.

    rho = sum A(s, a) (G - V(s)) / sqrt(sum A^2 sum (G - V)^2)

over recorded steps of held-back tasks; V is the value of the state, G the episode's outcome and A
the advantage that the Q model gives to the action that was taken. The numerator is the derivative
of the agent's expected outcome along the policy that Q tilts (the policy gradient theorem; Sutton
et al., 2000), so it is above 0 where following Q helps. It needs no state that occurs twice.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray
from scipy import stats

RESAMPLES: Final = 2_000
FEWEST_TASKS: Final = 20
"""Tasks below which chance has such a correlation too often: of two tasks in every fourth case."""
_BATCH: Final = 200
_SEED: Final = 0

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Credit:
    """Correlation of advantages with what was earned beyond expectation.

    Attributes:
        interval: 95 % bootstrap interval by task.
        steps: recorded steps of held-back tasks.
        tasks: number of those tasks.
    """

    correlation: float
    interval: tuple[float, float]
    steps: int
    tasks: int

    @property
    def licensed(self) -> bool:
        """True if preferred actions earned more than was expected."""
        return self.tasks >= FEWEST_TASKS and self.interval[0] > 0


def credit_of(advantages: Floats, surprises: Floats, tasks: Sequence[str]) -> Credit:
    """The correlation over all steps.

    Args:
        advantages: (n,) A(s, a) of the action that was taken.
        surprises: (n,) G - V(s).
        tasks: of each step.
    """
    names, of = np.unique(np.asarray(tasks), return_inverse=True)
    products = (advantages * surprises, advantages**2, surprises**2)
    together, own, other = (np.bincount(of, weights=each).astype(np.float64) for each in products)
    correlation = float(_correlation(together, own, other))
    if len(names) < 2 or correlation == 0:
        return Credit(correlation, (correlation, correlation), len(of), len(names))
    low, high = stats.bootstrap(
        (together, own, other),
        _correlation,
        paired=True,
        vectorized=True,
        n_resamples=RESAMPLES,
        batch=_BATCH,
        method="percentile",
        rng=np.random.default_rng(_SEED),
    ).confidence_interval
    return Credit(correlation, (float(low), float(high)), len(of), len(names))


def _correlation(together: Floats, own: Floats, other: Floats, axis: int = -1) -> Floats:
    spread = np.sqrt(own.sum(axis=axis) * other.sum(axis=axis))
    found: Floats = together.sum(axis=axis) / np.where(spread > 0, spread, 1.0)
    return found

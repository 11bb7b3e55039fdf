"""Credit evidence: actions that a Q model prefers beside what they earned beyond expectation.

    rho = sum A(s, a) (G - V(s)) / sqrt(sum A^2 sum (G - V)^2)

over recorded steps of held-back units, which are tasks or episodes; V is the value of the state, G
the episode's outcome and A the advantage that the Q model gives to the action that was taken. The
numerator is the derivative of the agent's expected outcome along the policy that Q tilts (the
policy gradient theorem; Sutton et al., 2000), so it is above 0 where following Q helps. It needs no
state that occurs twice.

Where recordings tell what else the agent drew, its own preferences (votes, the greedy reply, both
together) have such a correlation, too, and a licence needs a higher one than each.

Errors are those of a jackknife over units. A correlation of two errors says that Q knows something;
to choose by it takes more, so a licence needs three, and two over the agent's own preferences.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np
from numpy.typing import NDArray

from qguide.qnet.models.manifest import LicenceLead
from qguide.training.evaluation.statistics import Interval

FEWEST_UNITS: Final = 20
"""Units below which chance has such a correlation too often: of two tasks in every fourth case."""
FEWEST_EPISODES: Final = 40
"""Likewise: of 25 episodes, a handful makes the correlation and its error."""
ERRORS: Final = 3.0
"""Standard errors above chance that a licence takes."""
ERRORS_OF_LEAD: Final = 1.96
"""The same above each of the agent's own preferences."""

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Credit:
    """Correlation of advantages with what was earned beyond expectation.

    Attributes:
        interval: three standard errors to either side, by unit.
        steps: recorded steps of held-back units.
        units: number of those.
        episodes: number of those.
        leads: over the agent's preferences that are known, by their names.
    """

    correlation: float
    interval: Interval
    steps: int
    units: int
    episodes: int
    leads: Mapping[str, LicenceLead] = field(default_factory=dict)

    @property
    def enough(self) -> bool:
        """True if there are as many units and episodes as a licence needs."""
        return self.units >= FEWEST_UNITS and self.episodes >= FEWEST_EPISODES

    @property
    def licensed(self) -> bool:
        """True if preferred actions earned more than was expected, and than the agent's own."""
        above = self.interval[0] > 0 and all(one.interval[0] > 0 for one in self.leads.values())
        return self.enough and above


def credit_of(
    advantages: Floats,
    surprises: Floats,
    units: Sequence[str],
    own: Mapping[str, Floats] | None = None,
    *,
    episodes: int,
) -> Credit:
    """The correlation over all steps.

    Args:
        advantages: (n,) A(s, a) of the action that was taken.
        surprises: (n,) G - V(s).
        units: of each step.
        own: (n,) the agent's own preferences for that action, by name; NaN where unknown. One that
            is known in fewer than 20 units is not compared.
    """
    names, of = np.unique(np.asarray(units), return_inverse=True)
    products = (advantages * surprises, advantages**2, surprises**2)
    correlation, interval = _by_unit(_correlation, of, products, errors=ERRORS)
    leads = {
        name: _lead(advantages, preferred, surprises, of)
        for name, preferred in (own or {}).items()
        if len(np.unique(of[~np.isnan(preferred)])) >= FEWEST_UNITS
    }
    return Credit(correlation, interval, len(of), len(names), episodes, leads)


def _lead(advantages: Floats, preferred: Floats, surprises: Floats, of: NDArray[np.int_]) -> LicenceLead:
    known = ~np.isnan(preferred)
    ours, theirs, earned = advantages[known], preferred[known], surprises[known]
    difference, interval = _by_unit(
        _difference,
        np.unique(of[known], return_inverse=True)[1],
        (ours * earned, ours**2, theirs * earned, theirs**2, earned**2),
        errors=ERRORS_OF_LEAD,
    )
    return LicenceLead(difference=difference, interval=interval, steps=int(known.sum()))


def _by_unit(
    figure: Callable[..., Floats], of: NDArray[np.int_], products: Sequence[Floats], *, errors: float
) -> tuple[float, Interval]:
    """A figure of sums over steps, and as many standard errors to either side.

    Args:
        of: (n,) number of each step's unit.
        products: (n,) each; their sums are the figure's arguments.
    """
    sums = [np.bincount(of, weights=each) for each in products]
    found = float(figure(*(own.sum() for own in sums)))
    without = figure(*(own.sum() - own for own in sums))  # each unit in turn
    margin = errors * float(np.sqrt((len(without) - 1) * np.var(without)))
    return found, (found - margin, found + margin)


def _difference(ours: Floats, our_own: Floats, theirs: Floats, their_own: Floats, other: Floats) -> Floats:
    return _correlation(ours, our_own, other) - _correlation(theirs, their_own, other)


def _correlation(together: Floats, own: Floats, other: Floats) -> Floats:
    spread = np.sqrt(np.maximum(own * other, 0.0))  # what rounding leaves may be below 0
    found: Floats = together / np.where(spread > 0, spread, 1.0)
    return found

"""Temperature of the posterior Q / tau + log prior, fitted by the expected outcome of its choices.

Every candidate of a held-back decision has a known outcome, so any temperature's choices can be
valued without playing. The rule of one standard error (Breiman et al., 1984) is applied toward the
prior: the largest tau is taken that is not worse than the best one beyond its error, so a Q model
whose lift is within the noise leaves the policy's own choice.
"""

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import Final

from qguide.qnet.models.manifest import OutcomeAtTau

TAUS: Final = (0.0, *(m * 10.0**e for e in range(-3, 3) for m in (1, 3)), 1000.0)
"""Temperatures that are tried: the argmax of Q, then two per decade, to about the prior alone."""

FEWEST_DECISIONS: Final = 10
"""Decisions whose outcomes differ below which no temperature is fitted."""


@dataclass(frozen=True, slots=True)
class ValuedDecision:
    """One state's distinct candidates with their Q, prior and outcome.

    Attributes:
        task: decisions of one task count together once.
        outcomes: expected outcome, or label, after each candidate; more is better.
    """

    task: str
    q_values: Sequence[float]
    log_prior: Sequence[float]
    outcomes: Sequence[float]

    @property
    def informs(self) -> bool:
        """True if it matters which candidate is chosen."""
        return len(set(self.outcomes)) > 1

    def outcome(self, tau: float) -> float:
        """Outcome of the choice at a temperature, the mean over candidates that tie."""
        # As Q / tau + log p, without a division by 0; where these tie p decides, which is the limit
        # of a small tau.
        scores = [(q + tau * p, p) for q, p in zip(self.q_values, self.log_prior, strict=True)]
        highest = max(scores)
        return fmean(o for o, score in zip(self.outcomes, scores, strict=True) if score == highest)


@dataclass(frozen=True, slots=True)
class TauFit:
    """The fitted temperature and what was known.

    Attributes:
        curve: one point per temperature, in the order of the grid.
        decisions: number of decisions whose outcomes differ.
    """

    tau: float
    curve: tuple[OutcomeAtTau, ...]
    decisions: int
    tasks: int

    @property
    def point(self) -> OutcomeAtTau:
        """The fitted temperature's point of the curve."""
        return next(point for point in self.curve if point.tau == self.tau)


def fit_tau(decisions: Sequence[ValuedDecision]) -> TauFit | None:
    """The temperature for these decisions; None where too few of them inform.

    Args:
        decisions: of tasks that the Q model was not trained on.
    """
    informing = [decision for decision in decisions if decision.informs]
    if len(informing) < FEWEST_DECISIONS:
        return None
    by_task: dict[str, list[ValuedDecision]] = defaultdict(list)
    for decision in informing:
        by_task[decision.task].append(decision)
    outcomes = {tau: [fmean(d.outcome(tau) for d in own) for own in by_task.values()] for tau in TAUS}
    # Reversed, so that of equally good ones the largest is the best, which leans toward the prior.
    best = max(reversed(TAUS), key=lambda tau: fmean(outcomes[tau]))
    curve = [
        OutcomeAtTau(tau=tau, outcome=fmean(own), standard_error=_standard_error(outcomes[best], own))
        for tau, own in outcomes.items()
    ]
    highest = fmean(outcomes[best])
    near = [point.tau for point in curve if highest - point.outcome <= point.standard_error]
    return TauFit(max(near), tuple(curve), len(informing), len(by_task))


def _standard_error(best: Sequence[float], other: Sequence[float]) -> float:
    """Standard error of the mean difference, paired; 0 for a single task."""
    differences = [a - b for a, b in zip(best, other, strict=True)]
    if len(differences) < 2:
        return 0.0
    return stdev(differences) / math.sqrt(len(differences))

"""Metrics that check whether Q depends on the object that a reply names."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean


@dataclass(frozen=True, slots=True)
class ScoredReadPair:
    """A scorer's values in two states: one with the object that the reply names, one without.

    Attributes:
        present, absent: values of the reply in the two states.
        rival_present, rival_absent: values of a reply that goes elsewhere; None if there is none.
    """

    present: float
    absent: float
    rival_present: float | None = None
    rival_absent: float | None = None


def read_pair_figures(pairs: Sequence[ScoredReadPair]) -> dict[str, float]:
    """Figures of all pairs; empty without pairs.

    Returns:
        `read_pair_accuracy`: share of pairs in which the reply has a higher value in the state
        where it can work (a tie counts half). `leaves_when_absent`: share of pairs in which the
        rival has the higher value where the object is absent. `takes_when_present`: share in which
        the reply has the higher value where the object is present.
    """
    if not pairs:
        return {}
    figures = {
        "read_pairs": len(pairs),
        "read_pair_accuracy": fmean(_above(pair.present, pair.absent) for pair in pairs),
    }
    leaves = [_above(p.rival_absent, p.absent) for p in pairs if p.rival_absent is not None]
    takes = [_above(p.present, p.rival_present) for p in pairs if p.rival_present is not None]
    if leaves and takes:
        figures |= {"leaves_when_absent": fmean(leaves), "takes_when_present": fmean(takes)}
    return figures


def _above(higher: float, lower: float) -> float:
    return 0.5 if higher == lower else float(higher > lower)

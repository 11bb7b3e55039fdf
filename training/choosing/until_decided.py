"""Draws saved where they end once decided: the server's rule on recorded groups, in drawn order.

See `qguide.qnet.decision.early_stop`. Candidates are drawn one at a time; what is saved is told in
characters that need not be written.
"""

from typing import Final

import numpy as np

from qguide.qnet.decision.early_stop import UntilDecided, is_decided
from qguide.qnet.decision.selection import SMOOTHING, Prior
from qguide.training.choosing.choosers import earned
from qguide.training.choosing.table import Floats, Ints, Table, equal

_TAUS: Final = (0.02, 0.05, 0.1, 0.2, 0.5, 1.0)


def written_until_decided(
    table: Table, groups: Ints, q: Floats | None = None, tau: float | None = None
) -> Floats:
    """(g,) share of a group's characters that are written until the choice is decided.

    Args:
        q: (g, m) in [0, 1]; None decides by votes.
    """
    size = groups.shape[1]
    until = UntilDecided(None if q is None else 1.0)
    needed = np.full(len(groups), size)
    for row, effects in enumerate(table.actions[groups].tolist()):
        for n in range(1, size):
            prior = Prior((), tuple(effects[:n]))
            values = None if q is None else q[row, :n].tolist()
            if is_decided(prior, values, until, left=size - n, tau=tau):
                needed[row] = n
                break
    written = np.cumsum(table.written[groups], axis=1)
    drawn = np.take_along_axis(written, needed[:, None] - 1, axis=1)[:, 0]
    share: Floats = (drawn / np.maximum(written[:, -1], 1)).astype(np.float32)
    return share


def served_posterior(table: Table, groups: Ints, q: Floats, tau: float) -> Floats:
    """(g, m) scores of the server's posterior: the highest Q of an effect + tau log votes."""
    same = equal(table.actions[groups])
    scores: Floats = (same * q[:, None, :]).max(axis=2) + tau * np.log(same.sum(2) + SMOOTHING)
    return scores


def fitted_served_tau(table: Table, groups: Ints, q: Floats) -> float:
    """The tau by which the server's posterior earns most in held-back groups of training."""
    gains = [earned(table, groups, served_posterior(table, groups, q, t)).mean() for t in _TAUS]
    return _TAUS[int(np.argmax(gains))]

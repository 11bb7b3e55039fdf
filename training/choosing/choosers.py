"""Choosers among the candidates of a group: rules without training, Q, and votes with Q.

A chooser is a score of each candidate; it earns the mean reward of those with the highest, so that
no figure depends on the order of the candidates.
"""

from typing import Final

import numpy as np
from numpy.typing import NDArray

from qguide.training.choosing.table import Floats, Ints, Table, equal

RULES: Final = ("majority", "majority by result", "valid", "valid then majority")
"""Choosers that need neither training nor the models' names."""
KNOWING: Final = "best model"
"""Chooser that knows which model made a candidate, and how good each was on training tasks."""
_TAUS: Final = (0.0, 0.1, 0.2, 0.4, 0.7, 1.0, 1.5, 2.5)


def earned(table: Table, groups: Ints, scores: Floats) -> Floats:
    """(g,) expected reward of choosing the highest score."""
    best = scores >= scores.max(axis=1, keepdims=True)
    return np.average(table.rewards[groups], axis=1, weights=best).astype(np.float32)


def rule_scores(table: Table, groups: Ints) -> dict[str, Floats]:
    """Scores of each rule, of a random choice and of the oracle."""
    actions, results = (votes(keys[groups]) for keys in (table.actions, table.results))
    valid = table.valid[groups].astype(np.float32)
    return {
        "random": np.zeros(groups.shape, np.float32),
        "majority": actions,
        "majority by result": results * valid,
        "valid": valid,
        "valid then majority": valid_first(table.valid[groups], results),
        "oracle": table.rewards[groups],
    }


def votes(keys: Ints) -> Floats:
    """(g, m) share of the group that equals each candidate."""
    share: Floats = equal(keys).mean(axis=2)
    return share


def valid_first(valid: NDArray[np.bool_], scores: Floats) -> Floats:
    """The scores, of invalid candidates below all of valid ones."""
    return np.where(valid, scores, scores.min() - 1 + scores - scores.max())


def model_scores(table: Table, groups: Ints, training: NDArray[np.bool_]) -> Floats:
    """Mean reward of each candidate's model on training tasks."""
    sums = np.bincount(table.models[training], table.rewards[training], len(table.model_names))
    counts = np.bincount(table.models[training], minlength=len(table.model_names))
    means: Floats = (sums / np.maximum(counts, 1)).astype(np.float32)
    return means[table.models[groups]]


def posterior_scores(table: Table, groups: Ints, logits: Floats, tau: float) -> Floats:
    """Scores of votes with Q: mean log Q over equal answers + tau times the log share of votes.

    Args:
        logits: (g, m) of success.
        tau: 0 leaves the votes out, and Q chooses alone.
    """
    log_q = -np.logaddexp(0, -logits)
    same = equal(table.results[groups])
    share = same.mean(axis=2)
    pooled = (same * log_q[:, None, :]).sum(axis=2) / same.sum(axis=2) if tau else log_q
    scores: Floats = (pooled + tau * np.log(share)).astype(np.float32)
    return scores


def fitted_tau(table: Table, groups: Ints, logits: Floats) -> float:
    """The weight of the votes by which most is earned in groups of held-back tasks of training."""
    gains = [
        earned(table, groups, posterior_scores(table, groups, logits, tau)).mean() for tau in _TAUS
    ]
    return _TAUS[int(np.argmax(gains))]

"""Choosers among the candidates of a group: rules without training, Q, and votes with Q.

A chooser is a score of each candidate; it earns the mean reward of those with the highest, so that
no figure depends on the order of the candidates.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import product
from typing import Final

import numpy as np
from numpy.typing import NDArray

from qguide.training.choosing.table import Floats, Ints, Table, equal

RULES: Final = ("majority", "majority by result", "valid", "valid then majority")
"""Choosers that need neither training nor the models' names."""
KNOWING: Final = "best model"
"""Chooser that knows which model made a candidate, and how good each was on training tasks."""
_TAUS: Final = (0.0, 0.15, 0.3, 0.5, 0.75, 1.0, 1.5, 2.5, 5.0)


@dataclass(frozen=True, slots=True)
class Posterior:
    """argmax of the mean log Q over equal candidates + tau times the log share of the votes.

    Attributes:
        tau: 0 leaves the votes out.
        reads: "q" or "q in group".
        valid: invalid candidates are left out where there are valid ones.
    """

    tau: float
    reads: str
    valid: bool


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


def posterior_scores(
    table: Table, groups: Ints, logits: Mapping[str, Floats], how: Posterior
) -> Floats:
    """Scores of votes with Q."""
    log_q = -np.logaddexp(0, -logits[how.reads])
    same = equal(table.results[groups])
    share = same.mean(axis=2)
    pooled = (same * log_q[:, None, :]).sum(axis=2) / same.sum(axis=2) if how.tau else log_q
    scores = (pooled + how.tau * np.log(share)).astype(np.float32)
    return valid_first(table.valid[groups], scores) if how.valid else scores


def fitted_posterior(table: Table, groups: Ints, logits: Mapping[str, Floats]) -> Posterior:
    """The posterior that earns most in groups of held-back tasks of training."""
    choices = [
        Posterior(tau, reads, valid)
        for tau, reads, valid in product(_TAUS, sorted(logits), (False, True))
    ]
    gains = [
        earned(table, groups, posterior_scores(table, groups, logits, how)).mean()
        for how in choices
    ]
    return choices[int(np.argmax(gains))]

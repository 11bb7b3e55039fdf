"""Choosers among the candidates of a group: rules without training, Q, and votes with Q.

A chooser is a score of each candidate; it earns the mean reward of those with the highest, so that
no figure depends on the order of the candidates.

Two ways to save are measured beside them. Of attempts that have taken their turns, those with the
highest scores go on and the others are `stopped`; success is that of the best that went on, because
the environment tells it. Candidates are drawn one at a time until the server's rule
(`qguide.qnet.decision.early_stop`) is decided; what is saved is told in characters or tokens.
"""

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from qguide.qnet.decision.early_stop import UntilDecided, is_decided
from qguide.qnet.decision.selection import SMOOTHING, Prior
from qguide.training.choosing.table import Floats, Ints, Table, equal

RULES: Final = ("majority", "majority by result", "valid", "valid then majority", "likeliest")
"""Choosers that need neither training nor the models' names; the last where likelihoods are known."""
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
    likeliest = {} if np.isnan(table.logprobs).any() else {"likeliest": table.logprobs[groups]}
    return {
        "random": np.zeros(groups.shape, np.float32),
        "majority": actions,
        "majority by result": results * valid,
        "valid": valid,
        "valid then majority": valid_first(table.valid[groups], results),
        **likeliest,
        "oracle": table.rewards[groups],
    }


def votes(keys: Ints) -> Floats:
    """(g, m) share of the group that equals each candidate."""
    share: Floats = equal(keys).mean(axis=2)
    return share


def valid_first(valid: NDArray[np.bool_], scores: Floats) -> Floats:
    """The scores, of invalid candidates below all of valid ones."""
    # A score less the maximum is at most 0, so all invalid ones are below the minimum, in their order.
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
    gains = [earned(table, groups, posterior_scores(table, groups, logits, tau)).mean() for tau in _TAUS]
    return _TAUS[int(np.argmax(gains))]


def best_rule(table: Table, groups: Ints, scores: Floats) -> tuple[str, bool]:
    """The rule that earned most in held-back groups, and whether Q earned more than that.

    It did if its gain over the rule, by task, is above the gain's standard error.
    """
    rules = rule_scores(table, groups)
    gained = {name: earned(table, groups, rules[name]) for name in RULES if name in rules}
    best = max(gained, key=lambda name: gained[name].mean())
    tasks = table.tasks[groups[:, 0]]
    sums = np.bincount(tasks, earned(table, groups, scores) - gained[best])
    counts = np.bincount(tasks)
    gains = sums[counts > 0] / counts[counts > 0]
    error = gains.std(ddof=1) / np.sqrt(len(gains)) if len(gains) > 1 else np.inf
    return best, bool(gains.mean() > error)


STOPPING: Final = ("random", "valid then majority", "q in group")
"""Choosers by which attempts are stopped."""


def stopped(table: Table, groups: Ints, scores: Floats) -> Floats:
    """(g, m, 2) success and the length of what is written, if the first 1, 2, … m of a group go on."""
    chance = np.random.default_rng(0).random(groups.shape)
    order = np.lexsort((chance, -scores), axis=1)
    ranked = np.take_along_axis(groups, order, axis=1)
    success = np.maximum.accumulate(table.rewards[ranked], axis=1)
    so_far = table.written[groups].sum(axis=1, keepdims=True)
    written = so_far + np.cumsum(table.to_come[ranked], axis=1)
    return np.stack([success, written], axis=2).astype(np.float32)


def stopping_figures(
    tasks: Ints, among: NDArray[np.bool_], kept: dict[str, list[list[Floats]]], unit: str
) -> list[dict[str, Any]]:
    """For each number of attempts that go on: success, the length of what is written, and its share of that of all.

    Args:
        tasks: (g,) of each group.
        among: (g,) true for the groups that count.
        kept: of each chooser, for each training, the parts that `stopped` returned.
        unit: of lengths.
    """
    counts = np.bincount(tasks[among])
    weights = (1 / counts[tasks[among]])[:, None, None]
    means = {
        name: np.mean([(np.concatenate(parts)[among] * weights).sum(axis=0) for parts in own], 0)
        / np.count_nonzero(counts)
        for name, own in kept.items()
    }
    size = len(next(iter(means.values())))
    return [
        {"go_on": k + 1}
        | {
            name: {
                "success": round(float(mean[k, 0]), 4),
                unit: round(float(mean[k, 1])),
                "written": round(float(mean[k, 1] / mean[-1, 1]), 4),
            }
            for name, mean in means.items()
        }
        for k in range(size)
    ]


_SERVED_TAUS: Final = (0.02, 0.05, 0.1, 0.2, 0.5, 1.0)


def written_until_decided(table: Table, groups: Ints, q: Floats | None = None, tau: float | None = None) -> Floats:
    """(g,) share of the length of a group that is written until the choice is decided.

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
    gains = [earned(table, groups, served_posterior(table, groups, q, t)).mean() for t in _SERVED_TAUS]
    return _SERVED_TAUS[int(np.argmax(gains))]

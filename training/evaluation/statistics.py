"""Confidence intervals and significance tests over tasks, as pure functions.

The seeds of a task are not independent: the same game is equally hard under each of them. So each
task's seeds are averaged first, and then tasks are resampled or have their sign flipped.
"""

from collections.abc import Sequence

import numpy as np
from scipy import stats

RESAMPLES = 10_000
_CHUNK = 1_000

Interval = tuple[float, float]


def wilson_interval(successes: int, trials: int) -> Interval:
    """Wilson's 95 % score interval of a proportion; (0, 1) without trials."""
    if trials == 0:
        return 0.0, 1.0
    interval = stats.binomtest(successes, trials).proportion_ci(method="wilson")
    return float(interval.low), float(interval.high)


def bootstrap_interval(
    task_means: Sequence[float], rng: np.random.Generator, *, resamples: int = RESAMPLES
) -> Interval:
    """95 % percentile bootstrap interval of the mean over tasks.

    Args:
        task_means: one value per task, averaged over its seeds.
        rng: generator of the resamples; the same seed gives the same interval.
        resamples: number of resamples; with 10,000 the bounds of a rate vary by about 0.002.
    """
    if len(set(task_means)) < 2:  # one task, or all means equal: no interval to estimate
        mean = float(np.mean(task_means))
        return mean, mean
    interval = stats.bootstrap(
        (np.asarray(task_means, dtype=np.float64),),
        np.mean,
        n_resamples=resamples,
        batch=_CHUNK,
        method="percentile",
        rng=rng,
    ).confidence_interval
    return float(interval.low), float(interval.high)


def sign_flip_p_value(
    differences: Sequence[float], rng: np.random.Generator, *, permutations: int = RESAMPLES
) -> float:
    """p-value of a two-sided paired permutation test, clustered by task.

    Under the null hypothesis the two methods are exchangeable within a task, so the sign of a
    task's mean difference is a fair coin flip. The p-value is the share of flips whose mean is at
    least as far from 0 as the observed mean, which counts as one of them, so it is never 0. If
    there are at most `permutations` possible flips, all are tried and the p-value is exact.

    Args:
        differences: one per task, averaged over its seeds.
        rng: generator of the flips; the same seed gives the same p-value.
        permutations: maximum number of sign flips.
    """
    differences_K = np.asarray([d for d in differences if d != 0], dtype=np.float64)
    if len(differences_K) < 2:  # both signs of a single difference are equally far from 0
        return 1.0
    result = stats.permutation_test(
        (differences_K,),
        lambda flipped, axis: np.abs(flipped.sum(axis=axis)),
        permutation_type="samples",
        vectorized=True,
        n_resamples=permutations,
        batch=_CHUNK,
        alternative="greater",
        rng=rng,
    )
    return float(result.pvalue)

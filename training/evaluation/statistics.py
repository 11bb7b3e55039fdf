"""Confidence intervals and significance tests over tasks, as pure functions.

The seeds of a task are not independent: the same game is equally hard under each of them. So each
task's seeds are averaged first, and then tasks are resampled or have their sign flipped.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import scipy
from numpy.typing import NDArray

RESAMPLES = 10_000
_CHUNK = 1_000

Interval = tuple[float, float]
Column = NDArray[np.float64]
Observations = tuple[Sequence[float], Sequence[float]]
"""Sum and number of each task's observations, 0 and 0 where it has none."""
_LEAST = np.finfo(np.float64).tiny


def wilson_interval(successes: int, trials: int) -> Interval:
    """Wilson's 95 % score interval of a proportion; (0, 1) without trials."""
    if trials == 0:
        return 0.0, 1.0
    interval = scipy.stats.binomtest(successes, trials).proportion_ci(method="wilson")
    return float(interval.low), float(interval.high)


def bootstrap_interval(
    task_means: Sequence[float], rng: np.random.Generator, *, resamples: int = RESAMPLES
) -> Interval:
    """95 % percentile bootstrap interval of the mean over tasks.

    Args:
        task_means: one value per task, averaged over its seeds.
    """
    if len(set(task_means)) < 2:  # one task, or all means equal: no interval to estimate
        mean = float(np.mean(task_means))
        return mean, mean
    interval = scipy.stats.bootstrap(
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
        permutations: maximum number of sign flips.
    """
    differences_K = np.asarray([d for d in differences if d != 0], dtype=np.float64)
    if len(differences_K) < 2:  # both signs of a single difference are equally far from 0
        return 1.0
    result = scipy.stats.permutation_test(
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


class ClusteredDifference(NamedTuple):
    """Difference of two means over clustered observations.

    Attributes:
        interval: 95 % percentile bootstrap interval.
    """

    difference: float
    interval: Interval
    standard_error: float


def clustered_mean_interval(
    sums: Sequence[float], counts: Sequence[float], rng: np.random.Generator, *, resamples: int = RESAMPLES
) -> Interval:
    """95 % percentile bootstrap interval of a mean over observations, clustered by task."""
    sums_K, counts_K = np.asarray(sums, dtype=np.float64), np.asarray(counts, dtype=np.float64)
    mean = float(sums_K.sum() / counts_K.sum())
    if len(sums_K) < 2 or np.ptp(sums_K / counts_K) == 0:
        return mean, mean
    found = scipy.stats.bootstrap(
        (sums_K, counts_K),
        lambda sums, counts, axis: sums.sum(axis=axis) / counts.sum(axis=axis),
        paired=True,
        vectorized=True,
        n_resamples=resamples,
        batch=_batch(len(sums_K)),
        method="percentile",
        rng=rng,
    ).confidence_interval
    return float(found.low), float(found.high)


def stratified_difference(
    strata: Sequence[tuple[Observations, Observations]], rng: np.random.Generator, *, resamples: int = RESAMPLES
) -> ClusteredDifference:
    """Difference of the means of two arms within strata, pooled, with tasks resampled as wholes.

    sum_s w_s (mean_s(arm) - mean_s(baseline)) / sum_s w_s, where w_s = n_s(arm) n_s(baseline) / n_s: the weights of
    Mantel and Haenszel, with which it is the arm's coefficient in a regression with a constant for each stratum. A
    stratum with one arm alone has no weight. A task that both arms played stays paired; one that only one of them
    played counts there.

    Args:
        strata: arm and baseline of each, over the same tasks.
    """
    columns = np.array([one for pair in strata for side in pair for one in side], dtype=np.float64)
    tasks = columns.shape[1]

    def difference(drawn: NDArray[np.int64], axis: int = -1) -> Column:
        # How often each task was drawn, and so the sums of a resample, without a copy of every column.
        times = np.stack([np.bincount(one, minlength=tasks) for one in np.atleast_2d(drawn)])
        totals = columns @ times.T.astype(np.float64)
        sums_a, counts_a, sums_b, counts_b = (totals[place::4] for place in range(4))
        weights = counts_a * counts_b / np.maximum(counts_a + counts_b, 1)
        each = sums_a / np.maximum(counts_a, 1) - sums_b / np.maximum(counts_b, 1)
        # A resample without any task of an arm is too rare to matter, but must not be a NaN.
        found: Column = (weights * each).sum(axis=0) / np.maximum(weights.sum(axis=0), _LEAST)
        return found if drawn.ndim > 1 else found[0]

    observed = float(difference(np.arange(tasks)))
    if tasks < 2:
        return ClusteredDifference(observed, (observed, observed), 0.0)
    found = scipy.stats.bootstrap(
        (np.arange(tasks),),
        difference,
        vectorized=True,
        n_resamples=resamples,
        batch=_batch(tasks),
        method="percentile",
        rng=rng,
    )
    low, high = found.confidence_interval
    return ClusteredDifference(observed, (float(low), float(high)), float(found.standard_error))


def _batch(observations: int) -> int:
    """Number of resamples at a time, so that they take some tens of megabytes."""
    return max(1, min(_CHUNK, 2_000_000 // observations))

"""Intervals and tests over tasks. Values in, values out; the generator is passed in.

A task's seeds are not independent of each other: the same game is as hard under each of
them. So tasks are the unit that is resampled and whose sign is flipped, seeds averaged first.
"""

from collections.abc import Sequence
from math import sqrt

import numpy as np
from numpy.typing import NDArray

Z95 = 1.959963984540054
RESAMPLES = 10_000
_CHUNK = 1_000

Interval = tuple[float, float]


def wilson_interval(successes: int, trials: int, *, z: float = Z95) -> Interval:
    """Wilson's score interval of a proportion; (0, 1) without trials."""
    if trials == 0:
        return 0.0, 1.0
    rate = successes / trials
    scale = 1 + z * z / trials
    centre = rate + z * z / (2 * trials)
    spread = z * sqrt(rate * (1 - rate) / trials + z * z / (4 * trials * trials))
    low = (centre - spread) / scale if successes else 0.0
    high = (centre + spread) / scale if successes < trials else 1.0
    return low, high


def bootstrap_interval(
    task_means: Sequence[float], rng: np.random.Generator, *, resamples: int = RESAMPLES
) -> Interval:
    """95 % percentile bootstrap of the mean over tasks.

    Args:
        task_means: one value per task, its seeds averaged.
        rng: makes the interval repeatable.
        resamples: how many; 10,000 leave about 0.002 of noise on a rate.
    """
    means_K = np.asarray(task_means, dtype=np.float64)
    resampled = [
        means_K[rng.integers(len(means_K), size=(_CHUNK, len(means_K)))].mean(axis=1)
        for _ in range(-(-resamples // _CHUNK))
    ]
    low, high = np.quantile(np.concatenate(resampled), [0.025, 0.975])
    return float(low), float(high)


def sign_flip_p_value(
    differences: Sequence[float], rng: np.random.Generator, *, permutations: int = RESAMPLES
) -> float:
    """Two-sided paired permutation test, clustered by task.

    Under the null hypothesis the two methods are exchangeable within a task, so the sign of
    a task's mean difference is a fair coin. The share of flips whose mean is at least as far
    from 0 as the one observed, which itself counts as one flip: never 0.

    Args:
        differences: one per task, its seeds averaged.
        rng: makes the p-value repeatable.
        permutations: how many sign flips are drawn.
    """
    differences_K: NDArray[np.float64] = np.asarray(differences, dtype=np.float64)
    differences_K = differences_K[differences_K != 0]
    if not len(differences_K):
        return 1.0
    observed = abs(differences_K.sum()) - 1e-9
    extreme, drawn = 1, 1
    for _ in range(-(-permutations // _CHUNK)):
        signs_NK = rng.integers(0, 2, size=(_CHUNK, len(differences_K))) * 2 - 1
        extreme += int((np.abs(signs_NK @ differences_K) >= observed).sum())
        drawn += _CHUNK
    return extreme / drawn

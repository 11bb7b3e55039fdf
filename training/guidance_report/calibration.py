"""Q-values against the outcomes of their episodes: reliability and rank figures."""

from typing import Final

import numpy as np
import scipy
from numpy.typing import NDArray

from qguide.training.evaluation.statistics import Interval, clustered_mean_interval
from qguide.training.guidance_report.columns import Column, Columns
from qguide.training.guidance_report.schema import Bin, Reliability

_BINS: Final = 10
_RESAMPLES: Final = 500
_FEWEST_STEPS: Final = 20
"""A bin has at least so many steps."""


def reliability_of(columns: Columns) -> tuple[Reliability, ...]:
    """The reliability of every Q model whose values were recorded."""
    steps = columns.steps
    known = ~np.isnan(steps["q_taken"])
    found = []
    for number, name in enumerate(columns.q_models):
        chosen = known & (steps["q_model"] == number)
        if chosen.any():
            found.append(
                _reliability(columns, name, steps["q_taken"][chosen], steps["episode"][chosen])
            )
    return tuple(found)


def success_bound(columns: Columns) -> float:
    """Middle of the range of outcomes; an episode above it counts as successful."""
    outcomes = columns.episodes["outcome"]
    return float(outcomes.min() + outcomes.max()) / 2


def weighted_auc(values: Column, positive: Column, weights: Column) -> float | None:
    """Area under the ROC curve of weighted observations; None without both classes.

    The probability that a positive observation has the higher value; a tie counts half.
    """
    _, places = np.unique(values, return_inverse=True)
    heavy = np.bincount(places, weights=weights * positive)
    light = np.bincount(places, weights=weights * (1 - positive))
    total = float(heavy.sum() * light.sum())
    if not total:
        return None
    below = np.cumsum(light) - light
    return float((heavy * (below + light / 2)).sum()) / total


def _reliability(columns: Columns, name: str, q_values: Column, of_episode: Column) -> Reliability:
    numbers = of_episode.astype(np.int64)
    episodes, places = np.unique(numbers, return_inverse=True)
    mean_q = np.bincount(places, weights=q_values) / np.bincount(places)
    outcomes = columns.episodes["outcome"][episodes]
    tasks = columns.episodes["task"][episodes]
    bound = success_bound(columns)
    positive = (outcomes > bound).astype(np.float64)
    auc = weighted_auc(mean_q, positive, np.ones(len(episodes)))
    interval = None if auc is None else _auc_interval(mean_q, positive, tasks)
    varied = len(np.unique(mean_q)) > 1 and len(np.unique(outcomes)) > 1
    rank = float(scipy.stats.spearmanr(mean_q, outcomes).statistic) if varied else None
    return Reliability(
        q_model=name,
        steps=len(q_values),
        episodes=len(episodes),
        bins=_bins(columns, q_values, numbers),
        auc=auc,
        auc_ci95=interval,
        success_above=bound,
        rank_correlation=rank,
        sentence=_sentence(name, auc, interval),
    )


def _auc_interval(values: Column, positive: Column, tasks: Column) -> Interval:
    """95 % percentile bootstrap interval, with tasks resampled as wholes."""
    rng = np.random.default_rng(0)
    _, places = np.unique(tasks, return_inverse=True)
    count = int(places.max()) + 1
    found = []
    for _ in range(_RESAMPLES):
        drawn = np.bincount(rng.integers(count, size=count), minlength=count)
        auc = weighted_auc(values, positive, drawn[places].astype(np.float64))
        if auc is not None:
            found.append(auc)
    low, high = np.quantile(found, (0.025, 0.975))
    return float(low), float(high)


def _bins(columns: Columns, q_values: Column, episodes: NDArray[np.int64]) -> tuple[Bin, ...]:
    order = np.argsort(q_values, kind="stable")
    parts = np.array_split(order, min(_BINS, max(1, len(order) // _FEWEST_STEPS)))
    found = []
    for part in parts:
        outcomes = columns.episodes["outcome"][episodes[part]]
        _, places = np.unique(columns.episodes["task"][episodes[part]], return_inverse=True)
        sums, counts = np.bincount(places, weights=outcomes), np.bincount(places)
        rng = np.random.default_rng(0)
        interval = clustered_mean_interval(
            [float(one) for one in sums],
            [float(one) for one in counts],
            rng,
            resamples=_RESAMPLES,
        )
        found.append(
            Bin(
                mean_q=float(q_values[part].mean()),
                mean_outcome=float(outcomes.mean()),
                ci95=interval,
                steps=len(part),
            )
        )
    return tuple(found)


def _sentence(name: str, auc: float | None, interval: Interval | None) -> str:
    if auc is None or interval is None:
        return f"Q of {name} cannot be judged: all outcomes are alike"
    low, high = interval
    figures = f"AUC {auc:.2f}, 95 % interval {low:.2f} to {high:.2f}"
    if low > 0.5:
        return f"Q of {name} is higher in episodes that succeed ({figures})"
    if high < 0.5:
        return f"Q of {name} is lower in episodes that succeed, which is the wrong way ({figures})"
    return f"Q of {name} cannot be told from chance by the outcomes ({figures})"

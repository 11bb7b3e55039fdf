"""Q-values and a judge's verdicts against the outcomes of their episodes.

Q-values get reliability and rank figures, the criteria of a judge weights: a ridge regression of
the outcome on the mean verdicts of an episode's chosen candidates.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import scipy
from numpy.typing import NDArray

from qguide.qnet.judging.prompt import HIGHEST
from qguide.qnet.records import OfferRow
from qguide.training.evaluation.statistics import Interval, clustered_mean_interval
from qguide.training.guidance_report.columns import Column, Columns
from qguide.training.guidance_report.schema import Bin, CriterionWeight, Reliability

_BINS: Final = 10
_RESAMPLES: Final = 500
_FEWEST_STEPS: Final = 20
"""A bin has at least so many steps."""
_FEWEST_EPISODES: Final = 20
"""For each criterion of a judge."""
_FEWEST_TASKS: Final = 10
_RIDGE: Final = 1.0
"""Strength of the regression's prior that a criterion tells nothing, in episodes."""


def reliability_of(columns: Columns) -> tuple[Reliability, ...]:
    """The reliability of every Q model whose values were recorded."""
    steps = columns.steps
    known = ~np.isnan(steps["q_taken"])
    found = []
    for number, name in enumerate(columns.q_models):
        chosen = known & (steps["q_model"] == number)
        if chosen.any():
            found.append(_reliability(columns, name, steps["q_taken"][chosen], steps["episode"][chosen]))
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
            [float(one) for one in sums], [float(one) for one in counts], rng, resamples=_RESAMPLES
        )
        found.append(
            Bin(
                mean_q=float(q_values[part].mean()), mean_outcome=float(outcomes.mean()), ci95=interval, steps=len(part)
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


@dataclass(slots=True)
class CriteriaOutcomes:
    """Mean verdicts of each episode and its outcome, by judge and its criteria."""

    _judges: dict[tuple[str, tuple[str, ...]], "_Judged"] = field(default_factory=dict)

    def add(self, rows: Sequence[OfferRow]) -> None:
        """Note one episode under the judge of its last step."""
        judge = rows[-1].q_model
        verdicts = [
            one.verdicts
            for row in rows
            if row.q_model == judge
            for one in row.candidates
            if one.content == row.chosen and one.verdicts
        ]
        if not verdicts:
            return
        names = tuple(verdicts[-1])
        alike = [[one[name] for name in names] for one in verdicts if one.keys() == set(names)]
        judged = self._judges.setdefault((judge, names), _Judged(judge, names))
        judged.means.append(np.mean(alike, axis=0) / HIGHEST)
        judged.outcomes.append(rows[-1].outcome_reward)
        judged.tasks.append(rows[-1].task_id)

    def weights(self) -> Iterator[CriterionWeight]:
        """The weight of each criterion; without figures where nothing tells them."""
        for judged in self._judges.values():
            yield from judged.weights()

    def sentences(self) -> Iterator[str]:
        """Reasons why the criteria of a judge have no weights."""
        for judged in self._judges.values():
            if obstacle := judged.obstacle:
                yield f"no weights for the criteria of {judged.judge}: {obstacle}"


@dataclass(frozen=True, slots=True)
class _Judged:
    """Episodes of one judge.

    Attributes:
        means: mean verdict of each episode by each criterion, in [0, 1].
    """

    judge: str
    criteria: tuple[str, ...]
    means: list[Column] = field(default_factory=list)
    outcomes: list[float] = field(default_factory=list)
    tasks: list[str] = field(default_factory=list)

    @property
    def obstacle(self) -> str:
        """The reason why there are no weights; "" if there may be."""
        criteria, episodes = len(self.criteria), len(self.means)
        if (missing := _FEWEST_EPISODES * criteria - episodes) > 0:
            too_few = f"{episodes:,} episodes are too few for {criteria} criteria"
            return f"{too_few}; record {missing:,} more"
        if (missing := _FEWEST_TASKS - len(set(self.tasks))) > 0:
            return f"the episodes are of too few tasks; record {missing} more"
        return "all outcomes are alike" if len(set(self.outcomes)) == 1 else ""

    def weights(self) -> Iterator[CriterionWeight]:
        """The weight of each criterion."""
        found: dict[str, tuple[float, Interval]] = {} if self.obstacle else self._effects()
        highest = max((effect for effect, _ in found.values()), default=0.0)
        for name in self.criteria:
            effect, interval = found.get(name, (None, None))
            yield CriterionWeight(
                q_model=self.judge,
                criterion=name,
                episodes=len(self.means),
                effect=effect,
                ci95=interval,
                weight=max(effect, 0) / highest if effect is not None and highest > 0 else None,
            )

    def _effects(self) -> dict[str, tuple[float, Interval]]:
        """Effect of each criterion whose verdicts differ, with tasks resampled as wholes."""
        means, outcomes = np.array(self.means), np.array(self.outcomes)
        varied = np.flatnonzero(np.ptp(means, axis=0) > 0)
        if not len(varied):
            return {}
        means = means[:, varied]
        _, places = np.unique(self.tasks, return_inverse=True)
        count, rng = int(places.max()) + 1, np.random.default_rng(0)
        resampled = [
            _ridge_effects(means, outcomes, np.bincount(rng.integers(count, size=count), minlength=count)[places])
            for _ in range(_RESAMPLES)
        ]
        low, high = np.quantile(resampled, (0.025, 0.975), axis=0)
        effects = _ridge_effects(means, outcomes, np.ones(len(outcomes), dtype=np.int64))
        return {self.criteria[at]: (float(effects[i]), (float(low[i]), float(high[i]))) for i, at in enumerate(varied)}


def _ridge_effects(means: Column, outcomes: Column, times: NDArray[np.int64]) -> Column:
    """Coefficient of each column of [episodes, criteria]; the intercept has no prior."""
    spread = means.std(axis=0)  # of all episodes, so that every resample has the same prior
    x = (means - np.average(means, axis=0, weights=times)) / spread
    y = outcomes - np.average(outcomes, weights=times)
    weighted = x.T * times
    found = np.linalg.solve(weighted @ x + _RIDGE * np.eye(x.shape[1]), weighted @ y)
    return np.asarray(found / spread, dtype=np.float64)

"""Arms of recorded episodes against a baseline: outcomes with intervals, and findings in words.

Trials of a server that learned follow the rules by which it told of them itself: the same episodes
give the figures of GET /v1/learning, as far as they are recorded and ended while their trial, or
the guidance after it, went on.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from math import ceil
from operator import attrgetter
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from qguide.qnet.errors import ConfigError
from qguide.qnet.records import OfferRow
from qguide.qnet.trial_statistics import DifferenceSequence, level_of
from qguide.training.evaluation.statistics import clustered_mean_interval, stratified_difference
from qguide.training.guidance_report.columns import CONTROL, NO_Q_MODEL, OF, Column, Columns, Stratum
from qguide.training.guidance_report.schema import (
    Arm,
    ArmComparison,
    Finding,
    ShadowedQ,
    Spread,
    TrialArm,
    TrialFigures,
)

FEWEST_TASKS: Final = 10
"""An arm with fewer tasks has no interval: resampling so few says too little."""

FEWEST_EPISODES: Final = 20
"""The same where episodes are resampled in place of tasks."""

POINTS: Final = 5.0
"""Difference that a comparison should be able to show, in points."""

_DETECTION: Final = 1.96 + 0.84
"""Standard errors by which a difference has to exceed 0, to be seen at the 5 % level in 80 %."""

_RESAMPLES: Final = 2_000
_SEED: Final = 0

Mask = NDArray[np.bool_]


def arms_of(columns: Columns, among: Mask) -> tuple[Arm, ...]:
    """The arms, by descending number of episodes."""
    arms = [_arm(columns, int(number), among) for number in np.unique(columns.episodes["arm"][among])]
    return tuple(sorted(arms, key=lambda arm: (-arm.episodes, arm.name)))


def shadowed_of(columns: Columns) -> tuple[ShadowedQ, ...]:
    """The episodes of each arm that had a shadow, by shadow."""
    episodes = columns.episodes
    found = []
    for arm in range(len(columns.arms)):
        for number, shadow in enumerate(columns.shadows):
            chosen = (episodes["arm"] == arm) & (episodes["shadow"] == number)
            if chosen.any():
                found.append(
                    ShadowedQ(
                        arm=columns.arms[arm],
                        shadow=shadow,
                        episodes=int(chosen.sum()),
                        tasks=len(np.unique(episodes["task"][chosen])),
                        mean_outcome=float(episodes["outcome"][chosen].mean()),
                        ms=spread_of(episodes["ms"][chosen]),
                    )
                )
    return tuple(found)


def comparisons_of(
    columns: Columns, among: Mask, *, baseline: str | None = None, label: str = "here"
) -> tuple[ArmComparison, ...]:
    """Each arm against the baseline; of two unguided ones no sentence tells what guidance does.

    Args:
        baseline: the arm to compare with; None for the control arm if there is one, otherwise for
            the one with the most episodes.
        label: where the episodes were played, for the sentences.
    """
    arms = arms_of(columns, among)
    names = [arm.name for arm in arms]
    if len(arms) < 2 or (baseline is not None and baseline not in names):
        return ()
    base = baseline or (CONTROL if CONTROL in names else names[0])
    compared = [name for name in names if name != base and (base, name) != (CONTROL, NO_Q_MODEL)]
    if all_groups := pooled_learner(compared, base):
        compared.insert(0, all_groups)
    return tuple(_compare(columns, among, name, base, label) for name in compared)


def pooled_learner(names: Sequence[str], baseline: str) -> str:
    """Name of what several groups have learned, together; "" for fewer than two, and for one as the baseline."""
    learners = [name for name in names if OF in name]
    return f"{learners[0].partition(OF)[0]}{OF}all groups" if len(learners) > 1 and OF not in baseline else ""


def arms_named(columns: Columns, name: str) -> list[str]:
    """The arms of that name, which may be that of all groups' learners."""
    return [name] if name in columns.arms else [arm for arm in columns.arms if OF in arm]


def require_arm(columns: Columns, baseline: str | None) -> None:
    """Refuse a baseline of which there is no episode."""
    if baseline is not None and baseline not in columns.arms:
        raise ConfigError(f"--baseline {baseline!r} has no episode; name one of {', '.join(columns.arms)}")


def spread_of(values: Column) -> Spread:
    """The spread of the values that were recorded."""
    known = values[~np.isnan(values)]
    if not len(known):
        return Spread(mean=None, median=None, p95=None)
    median, p95 = np.quantile(known, (0.5, 0.95))
    return Spread(mean=float(known.mean()), median=float(median), p95=float(p95))


def outcome_range(columns: Columns) -> float:
    """1 for outcomes in [0, 1], otherwise the largest outcome minus the smallest."""
    outcomes = columns.episodes["outcome"]
    low, high = float(outcomes.min()), float(outcomes.max())
    return 1.0 if low >= 0 and high <= 1 else high - low


def by_unit(columns: Columns, chosen: Mask, units: Column) -> tuple[list[float], list[float]]:
    """Sum and number of the chosen episodes' outcomes, for each of the tasks (or episodes) that are resampled."""
    places = np.searchsorted(units, columns.episodes["unit"][chosen])
    outcomes = columns.episodes["outcome"][chosen]
    sums = np.bincount(places, weights=outcomes, minlength=len(units))
    counts = np.bincount(places, minlength=len(units))
    return [float(one) for one in sums], [float(one) for one in counts]


def _units(columns: Columns, chosen: Mask) -> Column:
    return np.unique(columns.episodes["unit"][chosen])


def _is_enough(columns: Columns, chosen: Mask) -> bool:
    return len(_units(columns, chosen)) >= (FEWEST_EPISODES if columns.same_tasks else FEWEST_TASKS)


def _arm(columns: Columns, number: int, among: Mask) -> Arm:
    episodes = columns.episodes
    chosen = among & (episodes["arm"] == number)
    interval = None
    if _is_enough(columns, chosen):
        sums, counts = by_unit(columns, chosen, _units(columns, chosen))
        rng = np.random.default_rng(_SEED)
        interval = clustered_mean_interval(sums, counts, rng, resamples=_RESAMPLES)
    return Arm(
        name=columns.arms[number],
        episodes=int(chosen.sum()),
        tasks=len(np.unique(episodes["task"][chosen])),
        mean_outcome=float(episodes["outcome"][chosen].mean()),
        ci95=interval,
        mean_steps=float(episodes["steps"][chosen].mean()),
        tokens=spread_of(episodes["tokens"][chosen]),
        ms=spread_of(episodes["ms"][chosen]),
    )


def _compare(columns: Columns, among: Mask, arm: str, baseline: str, label: str) -> ArmComparison:
    episodes, strata = columns.episodes, columns.episodes["stratum"]
    ours, theirs = (among & _of_arm(columns, name) for name in (arm, baseline))
    both = np.intersect1d(strata[ours], strata[theirs])
    shared = [columns.strata[int(one)] for one in both]
    alone = [columns.strata[int(one)] for one in np.setdiff1d(strata[ours], both)]
    if not shared:
        return _nothing_to_compare(arm, baseline, label, alone)
    ours, theirs = (one & np.isin(strata, both) for one in (ours, theirs))
    units = _units(columns, ours | theirs)
    found = stratified_difference(
        [
            (by_unit(columns, ours & own, units), by_unit(columns, theirs & own, units))
            for own in (strata == one for one in both)
        ],
        np.random.default_rng(_SEED),
        resamples=_RESAMPLES,
    )
    count = int((ours | theirs).sum())
    span = outcome_range(columns)
    enough = all(_is_enough(columns, one) for one in (ours, theirs))
    finding = _finding(found.interval) if enough else "too_few"
    more = _more_episodes(found.standard_error, count, span) if enough else None
    points = 100 * found.difference / span if span else 0.0
    interval = found.interval if enough else None
    counted = f"{count} episodes"
    if columns.same_tasks:
        counted += f" of these {len(np.unique(episodes['task'][ours | theirs]))} tasks"
    within = []
    if len(groups := {one.group for one in shared}) > 1:
        counted += f" of {len(groups)} groups"
        within.append("each group")
    if any(one.share for one in shared):
        within.append("each phase of learning")
    if within:
        counted += f", compared within {' and '.join(within)}"
    if alone:
        counted += f"; {_names(alone)} left out, having no episode of {baseline}"
    if not enough and columns.same_tasks:
        counted = f"{FEWEST_EPISODES} episodes ({counted})"
    elif not enough:
        again = "if your agent gets the same ones again and again, --same-tasks judges by episodes"
        counted = f"{FEWEST_TASKS} tasks ({counted}); {again}"
    return ArmComparison(
        arm=arm,
        baseline=baseline,
        episodes=count,
        difference=found.difference,
        points=points,
        ci95=interval,
        finding=finding,
        more_episodes=more,
        sentence=_sentence(arm, baseline, label, finding, points, interval, span, counted, more),
    )


def _of_arm(columns: Columns, name: str) -> Mask:
    numbers = [columns.arms.index(arm) for arm in arms_named(columns, name)]
    return np.isin(columns.episodes["arm"], numbers)


def _names(strata: Sequence[Stratum]) -> str:
    return ", ".join(dict.fromkeys(one.group or "episodes without a group" for one in strata))


def _nothing_to_compare(arm: str, baseline: str, label: str, strata: Sequence[Stratum]) -> ArmComparison:
    return ArmComparison(
        arm=arm,
        baseline=baseline,
        episodes=0,
        difference=None,
        points=None,
        ci95=None,
        finding="too_few",
        more_episodes=None,
        sentence=f"{arm} cannot be compared {label}: there is no episode of {baseline} in its group "
        f"({_names(strata)}) and phase of learning, and others say nothing about it",
    )


def _finding(interval: tuple[float, float]) -> Finding:
    low, high = interval
    if low > 0:
        return "helps"
    return "harms" if high < 0 else "unclear"


def _more_episodes(standard_error: float, episodes: int, span: float) -> int | None:
    """Episodes that are missing for a difference of `POINTS`, with arms of the same proportions.

    The standard error shrinks with the square root of the number of episodes.
    """
    if not standard_error or not span:
        return None
    needed = episodes * (standard_error * _DETECTION / (span * POINTS / 100)) ** 2
    return max(0, ceil(needed) - episodes)


def _sentence(
    arm: str,
    baseline: str,
    label: str,
    finding: Finding,
    points: float,
    interval: tuple[float, float] | None,
    span: float,
    counted: str,
    more: int | None,
) -> str:
    who = f"guidance by {arm}" if baseline == CONTROL else f"{arm}, compared with {baseline},"
    if interval is None:
        return f"{who} cannot be told from chance {label}: an arm has fewer than {counted}"
    low, high = (100 * bound / span if span else 0.0 for bound in interval)
    figures = f"{points:+.1f} points, 95 % interval {low:+.1f} to {high:+.1f}, {counted}"
    match finding:
        case "helps" | "harms":
            return f"{who} {finding} {label} ({figures})"
        case _ if more is None:
            return f"{who} cannot be told from chance {label} ({figures}; all outcomes are alike)"
        case _ if more == 0:
            return (
                f"{who} cannot be told from chance {label} ({figures}; they are enough to see a "
                f"{POINTS:g}-point difference in four of five cases)"
            )
    return (
        f"{who} cannot be told from chance {label} ({figures}; {more:,} more are needed for a "
        f"{POINTS:g}-point difference)"
    )


class _Tried(NamedTuple):
    """An episode of a trial."""

    at: float
    outcome: float
    guided: bool
    share: float
    guess: float | None
    alpha: float
    tokens: int


@dataclass(slots=True)
class Trials:
    """Episodes of each trial of each group; those of a challenger are not among them."""

    _tried: dict[tuple[str, int], list[_Tried]] = field(default_factory=dict)

    def add(self, rows: Sequence[OfferRow]) -> None:
        """Count one episode."""
        first = rows[0]
        if not (first.arm and first.trial and 0 < first.trial_share < 1) or first.challenger:
            return
        one = _Tried(
            at=first.at or 0.0,
            outcome=min(max(rows[-1].outcome_reward, 0.0), 1.0),
            guided=first.arm == "guided",
            share=first.trial_share,
            guess=first.trial_guess,
            alpha=first.alpha,
            tokens=sum(row.completion_tokens or 0 for row in rows),
        )
        self._tried.setdefault((first.group, first.trial), []).append(one)

    def figures(self) -> Iterator[TrialFigures]:
        """Figures of each trial, the earliest of a group first."""
        for (group, number), episodes in sorted(self._tried.items()):
            compared = DifferenceSequence(alpha=level_of(number, alpha=episodes[-1].alpha))
            # Replicas write files of their own, and the interval depends on the order.
            for one in sorted(episodes, key=attrgetter("at")):
                compared.add(one.outcome, guided=one.guided, share=one.share, guess=one.guess)
            interval = compared.interval
            yield TrialFigures(
                group=group,
                trial=number,
                guided=_trial_arm([one for one in episodes if one.guided]),
                unguided=_trial_arm([one for one in episodes if not one.guided]),
                low=interval.low,
                difference=interval.estimate,
                high=interval.high,
            )


def _trial_arm(episodes: Sequence[_Tried]) -> TrialArm:
    count = len(episodes)
    outcomes, tokens = (sum(map(attrgetter(name), episodes)) for name in ("outcome", "tokens"))
    return TrialArm(episodes=count, mean=outcomes / max(count, 1), tokens=tokens / max(count, 1))

"""Choice regret: the steps that a scorer's choices cost, on decision groups with known values.

A success rate says that guidance failed, not where. Every candidate of a decision group has been
played to the end (`qguide groups`), so a scorer's argmax can be compared with the best, the greedy
and a random candidate, and its order with the true one. No episode is played.
"""

from collections.abc import Iterable, Sequence
from itertools import combinations
from statistics import fmean

import numpy as np
from pydantic import BaseModel, ConfigDict, FiniteFloat, NonNegativeInt
from scipy import stats

from training.data.decision_groups import CandidateRow, DecisionGroupsRow, DecisionRow
from training.evaluation.statistics import bootstrap_interval

RESAMPLES = 2_000


class ScoredDecisionRow(BaseModel):
    """One decision among at least two candidates, and how a scorer ranks them.

    Attributes:
        step: actions before it.
        after_invalid: the action before it meant nothing to the environment.
        replies: the distinct candidates, in the order in which they were drawn.
        draws: how often each was drawn.
        q_values: the scorer's.
        steps: expected steps to the end of each; see `candidate_steps`.
        valid: False where the action meant nothing to the environment.
        greedy: index of the policy's greedy reply, None where it was not drawn.
        chosen: index of the highest value, the first of equal ones.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    step: NonNegativeInt
    after_invalid: bool
    replies: tuple[str, ...]
    draws: tuple[int, ...]
    q_values: tuple[FiniteFloat, ...]
    steps: tuple[FiniteFloat, ...]
    valid: tuple[bool, ...]
    greedy: int | None
    chosen: int


class ScoredEpisodeRow(BaseModel):
    """One episode's decisions; its reward is that of the agent which played it."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    task_id: str
    kind: str
    reward: FiniteFloat
    decisions: tuple[ScoredDecisionRow, ...]


def candidate_steps(candidate: CandidateRow, *, most: float) -> float:
    """Expected steps to the end, this action included; `most` where it is not reached.

    A graded outcome r counts as r times the steps and 1 - r times `most`.
    """
    return fmean(
        most - c.outcome_reward * (most - min(c.steps, most)) for c in candidate.continuations
    )


def scored_episode(
    row: DecisionGroupsRow, scores: Sequence[Sequence[float]], *, most_steps: float
) -> ScoredEpisodeRow:
    """The decisions of a row with a scorer's values.

    Args:
        row: with any number of candidates; decisions with a single one are left out.
        scores: for every decision, one value per candidate.
        most_steps: steps of a continuation that does not reach the end.
    """
    before: list[DecisionRow] = []
    decisions: list[ScoredDecisionRow] = []
    for decision, values in zip(row.decisions, scores, strict=True):
        if len(decision.candidates) > 1:
            decisions.append(_scored(decision, values, before, most_steps))
        before.append(decision)
    return ScoredEpisodeRow(
        task_id=row.task_id, kind=row.kind, reward=row.outcome_reward, decisions=tuple(decisions)
    )


def _scored(
    decision: DecisionRow, values: Sequence[float], before: Sequence[DecisionRow], most: float
) -> ScoredDecisionRow:
    candidates = decision.candidates
    return ScoredDecisionRow(
        step=len(before),
        after_invalid=bool(before) and not before[-1].taken.valid,
        replies=tuple(c.action for c in candidates),
        draws=tuple(c.count for c in candidates),
        q_values=tuple(values),
        steps=tuple(candidate_steps(c, most=most) for c in candidates),
        valid=tuple(c.valid for c in candidates),
        greedy=decision.greedy,
        chosen=max(range(len(values)), key=values.__getitem__),
    )


def choice_figures(rows: Iterable[ScoredEpisodeRow]) -> dict[str, float]:
    """Figures of all decisions among at least two candidates.

    Returns:
        `regret`: steps that the choice costs more than the best candidate, on average over
        decisions, with its 95 % interval over tasks; the same for the greedy candidate (where it
        was drawn), for a random one of the distinct candidates and for a random draw.
        `pair_accuracy`: share of pairs with different steps that the scorer puts in order (a tie
        counts half); `pair_accuracy_by_gap` counts each by its difference.
        `valid_above_invalid`: the same for pairs of which one action means nothing.
        `spearman`: mean within-state rank correlation of value and steps saved; a state whose
        candidates all cost the same is left out, constant values count 0.
        `invalid_rate` of the choice, of the greedy, a random distinct and a random drawn one;
        `invalid_after_invalid` where the action before it meant nothing either.
        Figures without a case are left out.
    """
    episodes = list(rows)
    decisions = [decision for episode in episodes for decision in episode.decisions]
    figures = _regrets(decisions) | _orders(decisions) | _invalid_rates(decisions)
    known = {name: value for name, value in figures.items() if value is not None}
    return {
        "episodes": len(episodes),
        "decisions": len(decisions),
        **known,
        **_regret_interval(episodes),
    }


def _regrets(decisions: Sequence[ScoredDecisionRow]) -> dict[str, float | None]:
    greedy = [(d, d.greedy) for d in decisions if d.greedy is not None]
    return {
        "regret": _mean([_regret(d, d.steps[d.chosen]) for d in decisions]),
        "regret_of_greedy": _mean([_regret(d, d.steps[first]) for d, first in greedy]),
        "regret_of_random_distinct": _mean([_regret(d, fmean(d.steps)) for d in decisions]),
        "regret_of_random_draw": _mean([_regret(d, _drawn(d, d.steps)) for d in decisions]),
    }


def _orders(decisions: Sequence[ScoredDecisionRow]) -> dict[str, float | None]:
    gaps, orders, by_validity = [], [], []
    for decision in decisions:
        for a, b in combinations(range(len(decision.steps)), 2):
            better, worse = (a, b) if decision.steps[a] < decision.steps[b] else (b, a)
            if decision.steps[a] != decision.steps[b]:
                gaps.append(decision.steps[worse] - decision.steps[better])
                orders.append(_order(decision, better, worse))
            if decision.valid[a] != decision.valid[b]:
                valid, invalid = (a, b) if decision.valid[a] else (b, a)
                by_validity.append(_order(decision, valid, invalid))
    weighted = sum(gap * order for gap, order in zip(gaps, orders, strict=True))
    return {
        "pairs": len(orders),
        "pair_accuracy": _mean(orders),
        "pair_accuracy_by_gap": weighted / sum(gaps) if gaps else None,
        "validity_pairs": len(by_validity),
        "valid_above_invalid": _mean(by_validity),
        "spearman": _mean([r for d in decisions if (r := _spearman(d)) is not None]),
    }


def _invalid_rates(decisions: Sequence[ScoredDecisionRow]) -> dict[str, float | None]:
    greedy = [(d, d.greedy) for d in decisions if d.greedy is not None]
    stuck = [decision for decision in decisions if decision.after_invalid]
    return {
        "invalid_rate": _mean([not d.valid[d.chosen] for d in decisions]),
        "invalid_rate_of_greedy": _mean([not d.valid[first] for d, first in greedy]),
        "invalid_rate_of_random_distinct": _mean([1 - fmean(d.valid) for d in decisions]),
        "invalid_rate_of_random_draw": _mean([1 - _drawn(d, d.valid) for d in decisions]),
        "invalid_after_invalid": _mean([not d.valid[d.chosen] for d in stuck]),
        "invalid_after_invalid_of_random_distinct": _mean([1 - fmean(d.valid) for d in stuck]),
    }


def _mean(values: Sequence[float]) -> float | None:
    return float(fmean(values)) if values else None


def _regret(decision: ScoredDecisionRow, steps: float) -> float:
    return steps - min(decision.steps)


def _regret_interval(episodes: Sequence[ScoredEpisodeRow]) -> dict[str, float]:
    """Interval of the mean over tasks, in which each task is the mean of its decisions."""
    means = [
        fmean(_regret(d, d.steps[d.chosen]) for d in episode.decisions)
        for episode in episodes
        if episode.decisions
    ]
    if not means:
        return {}
    low, high = bootstrap_interval(means, np.random.default_rng(0), resamples=RESAMPLES)
    return {"regret_by_task": fmean(means), "regret_by_task_low": low, "regret_by_task_high": high}


def _drawn(decision: ScoredDecisionRow, values: Sequence[float]) -> float:
    """The mean over the draws."""
    weighted = zip(decision.draws, values, strict=True)
    return sum(draws * value for draws, value in weighted) / sum(decision.draws)


def _order(decision: ScoredDecisionRow, better: int, worse: int) -> float:
    """1 where the better candidate has the higher value, 0.5 for a tie."""
    q_better, q_worse = decision.q_values[better], decision.q_values[worse]
    return 0.5 if q_better == q_worse else float(q_better > q_worse)


def _spearman(decision: ScoredDecisionRow) -> float | None:
    """Rank correlation of value and steps saved; None where all candidates cost the same."""
    if len(set(decision.steps)) < 2:
        return None
    if len(set(decision.q_values)) < 2:
        return 0.0
    saved = stats.rankdata([-steps for steps in decision.steps])
    return float(np.corrcoef(saved, stats.rankdata(decision.q_values))[0, 1])

"""Evidence for a licence: choices of a Q model beside the agent's own, on decisions it never saw.

    outcome(chooser) = mean over tasks of the mean outcome of its choices

The agent's own choices are one draw, the candidate that was drawn most often, and, where recordings
tell which it is, the greedy reply, and both of these together as the posterior weighs them. A
licence is granted if posterior − own choice is above 0 for each of them, by as many standard errors
by task as credit has to be: three over a draw, two over the others. The posterior's weights are
fitted on other tasks, so that the fit is not assessed by the decisions that it was chosen on. The
best of several Q models by these decisions needs more: as many standard errors as leave the chance
that any of them gets a licence by luck as small as that of one (Bonferroni).
"""

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from statistics import NormalDist, fmean
from typing import Final

import numpy as np

from qguide.qnet.models.manifest import LicenceFigures
from qguide.training.algorithms.posterior_temperature import FEWEST_DECISIONS, TauFit, ValuedDecision, fit_tau
from qguide.training.evaluation.statistics import Interval, bootstrap_interval, clustered_mean_interval
from qguide.training.licence.credit import ERRORS, ERRORS_OF_LEAD

RESAMPLES: Final = 2_000
OWN: Final = ("draw", "votes", "greedy")
"""Ways to choose without Q, the agent's own."""

PRIOR: Final = "prior"
"""The agent's own choice by votes and the greedy reply together, where the posterior knows both of enough tasks."""

FEWEST_TASKS: Final = 10
"""Tasks below which an interval by task says little, and chance is licensed too often."""
MOST_MISSING: Final = 10_000
"""Further decisions beyond which a gain counts as none. In outcomes of 0 and 1 three standard errors of so many are
about 3 * 0.5 / 10_000**0.5 = 0.015, and a smaller gain is not worth recording them."""
_FEWEST_PAIRS: Final = 30
"""Pairs with an order in both halves of the outcomes, below which their agreement says little."""
_NORMAL: Final = NormalDist()
_SEED: Final = 0


@dataclass(frozen=True, slots=True)
class HeldBackDecision:
    """One state of a held-back task, and all outcomes that were seen after each candidate.

    Attributes:
        q_values, log_prior: one per distinct candidate.
        outcomes: of each candidate, at least one.
        greedy: index of the agent's greedy reply; None if unknown.
        tau: of the posterior that is assessed here, fitted without this task; None: not fitted yet.
        greedy_weight: of the greedy reply in its prior, likewise.
    """

    task: str
    q_values: Sequence[float]
    log_prior: Sequence[float]
    outcomes: Sequence[Sequence[float]]
    greedy: int | None = None
    tau: float | None = None
    greedy_weight: float = 0.0

    @property
    def valued(self) -> ValuedDecision:
        """The decision with each candidate's mean outcome."""
        means = tuple(fmean(own) for own in self.outcomes)
        return ValuedDecision(self.task, tuple(self.q_values), tuple(self.log_prior), means)

    @property
    def favouring_greedy(self) -> ValuedDecision:
        """The decision with the greedy reply's weight added to its log prior."""
        weight = self.greedy_weight
        logs = [log + weight * (i == self.greedy) for i, log in enumerate(self.log_prior)]
        return replace(self.valued, log_prior=tuple(logs))


@dataclass(frozen=True, slots=True)
class Evidence:
    """A Q model beside the agent's own choice on held-back decisions.

    Attributes:
        decisions: whose candidates differ in outcome; others inform about nothing.
        tasks: of those decisions.
        pairs: of candidates with different outcomes.
        choosers: figures of `draw`, `votes`, `greedy` where enough decisions tell it, `q`,
            `posterior` and `oracle`, in this order.
        own: the one of the agent's own choices over which the gain is least certain.
        gain: outcome of the posterior minus that of `own`, and its interval: three standard errors
            to either side over a draw, 95 % over the others.
        ceiling: share of pairs that a Q model which knew the expected outcomes would order as these
            do, by the agreement of two halves of them; None where too few pairs tell it.
        tried: number of Q models of which these decisions chose this one; the interval is wider for it.
    """

    decisions: int
    tasks: int
    pairs: int
    choosers: Mapping[str, LicenceFigures]
    own: str
    gain: float
    gain_interval: Interval
    ceiling: float | None
    tau: TauFit | None
    tried: int = 1

    @property
    def licensed(self) -> bool:
        """True if the Q model beats the agent's own choice."""
        enough = self.decisions >= FEWEST_DECISIONS and self.tasks >= FEWEST_TASKS
        return enough and self.gain_interval[0] > 0

    @property
    def missing_decisions(self) -> int | None:
        """About how many further decisions would show the gain, if it is real.

        None if there is no gain, or one so near 0 that it would take more than `MOST_MISSING`. The width of
        the interval falls with the square root of their number.
        """
        if self.licensed:
            return 0
        if self.decisions < FEWEST_DECISIONS or self.tasks < FEWEST_TASKS:
            return max(FEWEST_DECISIONS - self.decisions, FEWEST_TASKS - self.tasks)
        half_width = self.gain - self.gain_interval[0]
        if self.gain <= 0:
            return None
        missing = self.decisions * ((half_width / self.gain) ** 2 - 1)
        return max(1, math.ceil(missing)) if missing <= MOST_MISSING else None


def evidence_of(decisions: Iterable[HeldBackDecision], *, tau: float | None = None, tried: int = 1) -> Evidence:
    """The figures on all decisions whose candidates differ in outcome.

    Args:
        tau: of the posterior that is served, where decisions have none of their own; None fits it.
        tried: number of Q models of which these decisions chose this one.
    """
    decisions = list(decisions)
    informing = [one for one in decisions if one.valued.informs]
    if not informing:
        return Evidence(0, 0, 0, {}, "", 0.0, (0.0, 0.0), None, None)
    valued = [one.valued for one in informing]
    own_taus = all(one.tau is not None for one in informing)
    fitted = fit_tau(valued) if tau is None and not own_taus else None
    outcomes = _outcomes(informing, fitted, tau=tau or 0.0)
    means = {name: _by_task(valued, own) for name, own in outcomes.items()}
    gains = {
        name: _by_task(valued, _differences(outcomes["posterior"], outcomes[name]))
        for name in (*OWN, PRIOR)
        if name in outcomes
    }
    intervals = {
        name: _gain_interval(gain, errors=_errors(ERRORS if name == "draw" else ERRORS_OF_LEAD, tried))
        for name, gain in gains.items()
    }
    # The hardest to beat, because a licence needs a gain over each of them.
    own = min(intervals, key=lambda name: intervals[name][0])
    shared = fitted.tau if fitted else tau or 0.0
    pairs = [pair for one in informing for pair in _pairs(one.valued, shared if one.tau is None else one.tau)]
    return Evidence(
        decisions=len(informing),
        tasks=len(means["draw"]),
        pairs=len(pairs),
        choosers={name: _figures(name, means, pairs, outcomes[name]) for name in means},
        own=own,
        gain=fmean(gains[own]),
        gain_interval=intervals[own],
        ceiling=_ceiling(decisions),  # of equal means, too: those are where two halves disagree
        tau=fitted,
        tried=tried,
    )


Outcomes = Sequence[float | None]
"""Outcome of each decision by one chooser; None where its choice is unknown."""


def _outcomes(decisions: Sequence[HeldBackDecision], fitted: TauFit | None, *, tau: float) -> dict[str, Outcomes]:
    """Outcomes by each chooser of which enough is known; `tau` where none is fitted."""
    valued = [one.valued for one in decisions]
    taus = dict(_taus_of_tasks(valued)) if fitted else {}
    greedy = [_greedy(one) for one in decisions]
    known = {one.task for one in decisions if one.greedy is not None}
    favoured = {one.task for one in decisions if one.greedy_weight and one.greedy is not None}
    return {
        "draw": [_drawn(one) for one in valued],
        "votes": [_likeliest(one) for one in valued],
        **({"greedy": greedy} if len(known) >= FEWEST_TASKS else {}),
        **({PRIOR: [_likeliest(one.favouring_greedy) for one in decisions]} if len(favoured) >= FEWEST_TASKS else {}),
        "q": [one.outcome(0.0) for one in valued],
        "posterior": [
            one.favouring_greedy.outcome(taus.get(one.task, tau) if one.tau is None else one.tau) for one in decisions
        ],
        "oracle": [max(one.outcomes) for one in valued],
    }


def _taus_of_tasks(valued: Sequence[ValuedDecision]) -> Iterator[tuple[str, float]]:
    """For each task the temperature that the other half of the tasks fits; 0 where it cannot."""
    tasks = list(dict.fromkeys(one.task for one in valued))
    for half in (tasks[::2], tasks[1::2]):
        others = fit_tau([one for one in valued if one.task not in set(half)])
        yield from ((task, others.tau if others else 0.0) for task in half)


def _likeliest(one: ValuedDecision) -> float:
    return ValuedDecision(one.task, one.log_prior, one.log_prior, one.outcomes).outcome(0.0)


def _greedy(one: HeldBackDecision) -> float | None:
    return None if one.greedy is None else one.valued.outcomes[one.greedy]


def _differences(ours: Outcomes, theirs: Outcomes) -> list[float | None]:
    return [None if a is None or b is None else a - b for a, b in zip(ours, theirs, strict=True)]


def _drawn(one: ValuedDecision) -> float:
    weights = [math.exp(log) for log in one.log_prior]
    return fmean(one.outcomes, weights=weights)


@dataclass(frozen=True, slots=True)
class _Pair:
    """Margins by which Q, the log prior and both prefer the candidate of the better outcome."""

    task: str
    q: float
    log_prior: float
    posterior: float


def _pairs(one: ValuedDecision, tau: float) -> Iterator[_Pair]:
    for a, b in combinations(range(len(one.outcomes)), 2):
        if one.outcomes[a] != one.outcomes[b]:
            better, worse = (a, b) if one.outcomes[a] > one.outcomes[b] else (b, a)
            q = one.q_values[better] - one.q_values[worse]
            log_prior = one.log_prior[better] - one.log_prior[worse]
            yield _Pair(one.task, q, log_prior, q + tau * log_prior)


def _figures(
    name: str, means: Mapping[str, Sequence[float]], pairs: Sequence[_Pair], outcomes: Outcomes
) -> LicenceFigures:
    margin = {
        "votes": lambda pair: pair.log_prior,
        "q": lambda pair: pair.q,
        "posterior": lambda pair: pair.posterior,
    }.get(name)
    outcome, best = fmean(means[name]), fmean(means["oracle"])
    accuracy, interval = _accuracy(pairs, margin) if margin and pairs else (None, None)
    return LicenceFigures(
        outcome=outcome,
        interval=bootstrap_interval(means[name], np.random.default_rng(_SEED), resamples=RESAMPLES),
        regret=best - outcome,
        pair_accuracy=accuracy,
        pair_interval=interval,
        decisions=sum(one is not None for one in outcomes) if None in outcomes else None,
    )


def _accuracy(pairs: Sequence[_Pair], margin: Callable[[_Pair], float]) -> tuple[float, Interval]:
    """Share of the pairs in the right order, where a tie is half right, and its interval."""
    of_task: dict[str, list[float]] = defaultdict(list)
    for pair in pairs:
        of_task[pair.task].append((float(np.sign(margin(pair))) + 1) / 2)
    share = fmean(right for own in of_task.values() for right in own)
    # Pairs of one task share its states, so tasks are resampled and not pairs.
    return share, clustered_mean_interval(
        [sum(own) for own in of_task.values()],
        [len(own) for own in of_task.values()],
        np.random.default_rng(_SEED),
        resamples=RESAMPLES,
    )


def _by_task(valued: Sequence[ValuedDecision], outcomes: Outcomes) -> list[float]:
    """Mean of each task's known outcomes, the tasks in the order of first appearance."""
    of_task: dict[str, list[float]] = defaultdict(list)
    for one, outcome in zip(valued, outcomes, strict=True):
        if outcome is not None:
            of_task[one.task].append(outcome)
    return [fmean(own) for own in of_task.values()]


def _errors(of_one: float, tried: int) -> float:
    """Standard errors that chance reaches in any of several trials as rarely as `of_one` in a single one."""
    return of_one if tried == 1 else _NORMAL.inv_cdf(1 - (1 - _NORMAL.cdf(of_one)) / tried)


def _gain_interval(gains: Sequence[float], *, errors: float) -> Interval:
    """Mean gain of the tasks, and as many standard errors to either side."""
    margin = errors * float(np.sqrt(np.var(gains) / max(len(gains) - 1, 1)))
    return fmean(gains) - margin, fmean(gains) + margin


def _ceiling(decisions: Sequence[HeldBackDecision]) -> float | None:
    """Share of pairs that the expected outcomes order as the mean outcomes do.

    Where one half of the outcomes orders a pair rightly with probability p, two halves agree with
    p^2 + (1 - p)^2. All outcomes have half the variance of one half, so that by Thurstone's model
    they are right with Phi(2^0.5 Phi^-1(p)).
    """
    alike = [
        (first_a > first_b) == (second_a > second_b)
        for decision in decisions
        for (first_a, second_a), (first_b, second_b) in combinations(_halves(decision), 2)
        if first_a != first_b and second_a != second_b
    ]
    if len(alike) < _FEWEST_PAIRS:
        return None
    half = (1 + math.sqrt(max(0.0, 2 * fmean(alike) - 1))) / 2
    return 1.0 if half == 1 else _NORMAL.cdf(math.sqrt(2) * _NORMAL.inv_cdf(half))


def _halves(decision: HeldBackDecision) -> Iterator[tuple[float, float]]:
    """Mean outcome in each half, of the candidates that were seen at least twice."""
    for own in decision.outcomes:
        if len(own) > 1:
            yield fmean(own[::2]), fmean(own[1::2])

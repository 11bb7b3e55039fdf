"""Other temperatures of the posterior, recomputed from recorded candidates: an estimate.

What a choice that was not made would have led to is known only where another episode made it in the
same state: the same task, after the same actions. So a temperature is compared with the recorded
choices at those decisions, and nowhere else.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import Final

import numpy as np

from qguide.qnet.chat_messages import effects_of, message_key
from qguide.qnet.decision.selection import log_votes
from qguide.qnet.records import OfferRow
from qguide.qnet.types import Message
from qguide.training.evaluation.statistics import bootstrap_interval
from qguide.training.guidance_report.comparison import FEWEST_TASKS
from qguide.training.guidance_report.schema import TauEstimate

TAUS: Final = (0.0, 0.01, 0.03, 0.1, 0.3, 1.0, inf)
"""Temperatures that are tried; the last is the vote alone."""

_RESAMPLES: Final = 2_000
_SEED: Final = 0


@dataclass(frozen=True, slots=True)
class _Decision:
    """A recorded choice by Q, and what each temperature would have chosen; actions as hashes."""

    task: int
    state: int
    chosen: int
    by_tau: tuple[int, ...]


@dataclass(slots=True)
class OtherTaus:
    """Decisions of all episodes and the outcomes that each action of a state led to."""

    _decisions: dict[str, list[_Decision]] = field(default_factory=lambda: defaultdict(list))
    _outcomes: dict[tuple[int, int], list[float]] = field(default_factory=dict)

    def add(self, rows: Sequence[OfferRow]) -> None:
        """Note one episode."""
        state = task = hash(rows[0].task_id)
        for row in rows:
            taken = _action(row.taken)
            total = self._outcomes.setdefault((state, taken), [0.0, 0.0])
            total[0] += row.outcome_reward
            total[1] += 1
            if row.taken == row.chosen and (by_tau := _choices(row)):
                self._decisions[row.q_model].append(_Decision(task, state, taken, by_tau))
            state = hash((state, taken))

    def estimates(self) -> tuple[TauEstimate, ...]:
        """One for each Q model and temperature."""
        return tuple(
            self._estimate(q_model, decisions, number)
            for q_model, decisions in self._decisions.items()
            for number in range(len(TAUS))
        )

    def _estimate(self, q_model: str, decisions: Sequence[_Decision], number: int) -> TauEstimate:
        other = [one for one in decisions if one.by_tau[number] != one.chosen]
        gains = list(self._gains(other, number))
        of_task: dict[int, list[float]] = defaultdict(list)
        for task, gain in gains:
            of_task[task].append(gain)
        means = [float(np.mean(own)) for own in of_task.values()]
        rng = np.random.default_rng(_SEED)
        enough = len(means) >= FEWEST_TASKS
        tau = TAUS[number]
        return TauEstimate(
            q_model=q_model,
            tau=None if tau == inf else tau,
            decisions=len(decisions),
            changed=len(other),
            known=len(gains),
            tasks=len(means),
            difference=float(np.mean(means)) if means else None,
            ci95=bootstrap_interval(means, rng, resamples=_RESAMPLES) if enough else None,
        )

    def _gains(self, decisions: Sequence[_Decision], number: int) -> Iterator[tuple[int, float]]:
        """Task and difference in mean outcome of each decision whose other choice is known."""
        for one in decisions:
            if theirs := self._outcomes.get((one.state, one.by_tau[number])):
                ours = self._outcomes[one.state, one.chosen]
                yield one.task, theirs[0] / theirs[1] - ours[0] / ours[1]


def _choices(row: OfferRow) -> tuple[int, ...]:
    """The choice of each temperature; none where Q or the draws of a candidate are unknown."""
    q_values = [one.q_value for one in row.candidates if one.q_value is not None]
    counts = [one.count for one in row.candidates if one.count is not None]
    if len(row.candidates) < 2 or not len(q_values) == len(counts) == len(row.candidates):
        return ()
    log_shares = log_votes(effects_of([_message(c.content) for c in row.candidates]), counts)
    scored = list(zip(q_values, log_shares, strict=True))
    return tuple(_action(row.candidates[_best(scored, tau)].content) for tau in TAUS)


def _best(scored: Sequence[tuple[float, float]], tau: float) -> int:
    """Index of the choice, as `qnet.decision.selection` makes it; the first of equal ones."""

    def score(index: int) -> tuple[float, float]:
        q, log = scored[index]
        return (log, q) if tau == inf else (q + tau * log, log if tau else 0.0)

    return max(range(len(scored)), key=score)


def _action(text: str) -> int:
    return hash(message_key(_message(text)))


def _message(text: str) -> Message:
    return Message("assistant", text)

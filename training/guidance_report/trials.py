"""Trials of a server that learned, by the rules by which it told of them itself.

The same episodes give the figures of GET /v1/learning, as far as they are recorded and ended while
their trial, or the guidance after it, went on.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

from qguide.qnet.records import OfferRow
from qguide.qnet.trial_statistics import DifferenceSequence, level_of
from qguide.training.guidance_report.schema import TrialArm, TrialFigures

_ALPHA: Final = 0.05
"""The default of QGUIDE_LEARN_ALPHA."""


@dataclass(slots=True)
class _Arm:
    episodes: int = 0
    outcomes: float = 0.0
    tokens: int = 0

    def add(self, outcome: float, rows: Sequence[OfferRow]) -> None:
        self.episodes += 1
        self.outcomes += outcome
        self.tokens += sum(row.completion_tokens or 0 for row in rows)

    @property
    def figures(self) -> TrialArm:
        count = max(self.episodes, 1)
        return TrialArm(
            episodes=self.episodes, mean=self.outcomes / count, tokens=self.tokens / count
        )


@dataclass(slots=True)
class _Trial:
    compared: DifferenceSequence
    guided: _Arm = field(default_factory=_Arm)
    unguided: _Arm = field(default_factory=_Arm)


@dataclass(slots=True)
class Trials:
    """Episodes of each trial; those of a challenger are not among them."""

    _trials: dict[int, _Trial] = field(default_factory=dict)

    def add(self, rows: Sequence[OfferRow]) -> None:
        """Count one episode."""
        first = rows[0]
        if not (first.arm and first.trial and 0 < first.trial_share < 1) or first.challenger:
            return
        if first.trial not in self._trials:
            level = level_of(first.trial, alpha=_ALPHA)
            self._trials[first.trial] = _Trial(DifferenceSequence(alpha=level))
        trial, guided = self._trials[first.trial], first.arm == "guided"
        outcome = min(max(rows[-1].outcome_reward, 0.0), 1.0)
        trial.compared.add(outcome, guided=guided, share=first.trial_share)
        (trial.guided if guided else trial.unguided).add(outcome, rows)

    def figures(self) -> Iterator[TrialFigures]:
        """Figures of each trial, the earliest first."""
        for number, trial in sorted(self._trials.items()):
            interval = trial.compared.interval
            yield TrialFigures(
                trial=number,
                guided=trial.guided.figures,
                unguided=trial.unguided.figures,
                low=interval.low,
                difference=interval.estimate,
                high=interval.high,
            )

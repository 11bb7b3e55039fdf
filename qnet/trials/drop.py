"""Detector of a drop of outcomes, such as when rules change that a Q model has learned.

A gambler bets that outcomes are below a level, and begins anew whenever nothing was won by it (the
e-CUSUM of Shin, Ramdas and Rinaldo, 2023). Where nothing drops, the mean time to an alarm is at
least `patience` episodes.
"""

import math
from dataclasses import dataclass
from typing import Final

_MOST_OF_FORTUNE: Final = 0.9


@dataclass(slots=True)
class DropDetector:
    """Alarm when outcomes in [0, 1] have fallen below a level, and since when.

    Attributes:
        patience: least mean number of episodes to an alarm where there is no drop.
        since: number of episodes before the drop, as far as it is seen.
        fortune: logarithm of what the gambler has.
        count: number of episodes.
    """

    patience: float
    since: int = 0
    fortune: float = 0.0
    count: int = 0

    @property
    def dropped(self) -> bool:
        """True once there is an alarm, until outcomes recover."""
        return self.fortune >= math.log(self.patience)

    def add(self, outcome: float, *, level: float) -> None:
        """Count one outcome.

        Args:
            level: mean outcome that is no drop, known before the outcome.
        """
        if self.fortune <= 0:
            self.fortune, self.since = 0.0, self.count
        self.count += 1
        bet = min(1.0, _MOST_OF_FORTUNE / max(1 - level, 1e-9))
        self.fortune += math.log1p(bet * (level - outcome))

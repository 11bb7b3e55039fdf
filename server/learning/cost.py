"""Sums of what learning has spent on candidates that the agent would not draw by itself."""

from dataclasses import dataclass, field
from typing import Final

from qguide.server.learning.lines import SpentLine

_MINUTE_S: Final = 60
_KEPT_MINUTES: Final = 24 * 60


@dataclass(frozen=True, slots=True)
class Spent:
    """Tokens, read and generated, and their cost; 0 where it is not known."""

    tokens: int = 0
    cost: float = 0.0

    def plus(self, other: "Spent") -> "Spent":
        """Both."""
        return Spent(self.tokens + other.tokens, self.cost + other.cost)


@dataclass(slots=True)
class Spending:
    """All that a group's learning has spent, and by the minute that of the latest day.

    Attributes:
        minutes: Unix time in minutes -> what was spent in it.
    """

    all: Spent = field(default_factory=Spent)
    minutes: dict[int, Spent] = field(default_factory=dict)

    def add(self, line: SpentLine) -> None:
        """Count a line; replicas' clocks may differ a little."""
        spent, minute = Spent(line.tokens, line.cost), int(line.at // _MINUTE_S)
        self.all = self.all.plus(spent)
        self.minutes[minute] = self.minutes.get(minute, Spent()).plus(spent)
        oldest = max(self.minutes) - _KEPT_MINUTES
        self.minutes = {m: one for m, one in self.minutes.items() if m >= oldest}

    def since(self, at: float) -> Spent:
        """Tokens and cost since a moment, to the minute."""
        found = Spent()
        for minute, spent in self.minutes.items():
            if minute >= at // _MINUTE_S:
                found = found.plus(spent)
        return found

"""Number, mean and cost of episodes."""

from collections import deque
from dataclasses import dataclass, field
from typing import Final

from qguide.server.learning.lines import EpisodeLine

NEWEST: Final = 200
"""Episodes that are the latest."""


@dataclass(slots=True)
class Tally:
    """Number and mean of outcomes.

    Attributes:
        tokens: drawn in all of the episodes.
        newest: the latest outcomes.
    """

    count: int = 0
    total: float = 0.0
    tokens: int = 0
    newest: deque[float] = field(default_factory=lambda: deque(maxlen=NEWEST))

    @property
    def mean(self) -> float:
        """Mean outcome, 0 of none."""
        return self.total / self.count if self.count else 0.0

    @property
    def mean_tokens(self) -> float:
        """Mean tokens of an episode, 0 of none."""
        return self.tokens / self.count if self.count else 0.0

    def add(self, line: EpisodeLine) -> None:
        """Count one."""
        self.count += 1
        self.total += line.outcome
        self.tokens += line.completion_tokens
        self.newest.append(line.outcome)

"""Number, mean outcome and cost of episodes."""

from collections import deque
from dataclasses import dataclass, field
from typing import Final

from qguide.server.learning.lines import EpisodeLine

NEWEST: Final = 200
"""Episodes that are the latest."""


@dataclass(slots=True)
class Tally:
    """Number, outcomes, tokens and cost of episodes.

    Attributes:
        total: sum of the outcomes.
        cost: of those that have one, whose number is `priced`.
        newest: the latest outcomes.
    """

    count: int = 0
    total: float = 0.0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cost: float = 0.0
    priced: int = 0
    newest: deque[float] = field(default_factory=deque)

    def __post_init__(self) -> None:
        self.newest = deque(self.newest, maxlen=NEWEST)

    @property
    def mean(self) -> float:
        """Mean outcome, 0 of none."""
        return self.total / max(self.count, 1)

    @property
    def mean_prompt_tokens(self) -> float:
        """Mean tokens that an episode's requests read, 0 of none."""
        return self.prompt_tokens / max(self.count, 1)

    @property
    def mean_tokens(self) -> float:
        """Mean tokens that were generated in an episode, 0 of none."""
        return self.completion_tokens / max(self.count, 1)

    @property
    def mean_cost(self) -> float | None:
        """Mean cost of an episode; None if none is known."""
        return self.cost / self.priced if self.priced else None

    def add(self, line: EpisodeLine) -> None:
        """Count one."""
        self.count += 1
        self.total += line.outcome
        self.prompt_tokens += line.prompt_tokens
        self.completion_tokens += line.completion_tokens
        if line.cost is not None:
            self.cost += line.cost
            self.priced += 1
        self.newest.append(line.outcome)

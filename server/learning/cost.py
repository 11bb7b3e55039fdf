"""Cost of what learning has drawn, beside the one candidate that the agent would draw by itself."""

from dataclasses import dataclass, field, replace
from typing import Final

from qguide.qnet.decision.decision import Decision
from qguide.qnet.usage import Prices, TokenUsage
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


def cost_of(spent: TokenUsage, prices: Prices | None) -> float | None:
    """Cost of some requests: the upstream's own word, or by the operator's prices."""
    if spent.cost is not None:
        return spent.cost
    return prices.cost_of(spent) if prices else None


def step_cost(decision: Decision, prices: Prices | None) -> float | None:
    """Cost of a step's requests to the policy's upstream."""
    usage = decision.usage
    spent = TokenUsage(
        usage.prompt_tokens,
        usage.completion_tokens,
        usage.cached_prompt_tokens,
        cost=usage.cost,
        written_tokens=usage.written_prompt_tokens,
    )
    return cost_of(spent, prices)


def extra_of(decision: Decision, prices: Prices | None) -> Spent:
    """Extra cost of a step's candidates, beside one of them.

    Where only the upstream says what the step cost, it is (M - 1) / M of that, the most that it
    can be.
    """
    drawn, usage = len(decision.candidates), decision.usage
    if drawn < 2:
        return Spent()
    once = max(candidate.prompt_tokens for candidate in decision.candidates)
    again = max(0, usage.prompt_tokens - (once or usage.prompt_tokens // drawn))
    generated = usage.completion_tokens * (drawn - 1) // drawn
    extra = TokenUsage(again, generated, min(usage.cached_prompt_tokens, again))
    if prices is None and usage.cost is not None:
        extra = replace(extra, cost=usage.cost * (drawn - 1) / drawn)
    return Spent(extra.tokens, cost_of(extra, prices) or 0.0)

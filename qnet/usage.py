"""Token usage of requests to models that count their own."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from pydantic import BaseModel, Field

_MILLION = 1_000_000


@dataclass(frozen=True, slots=True)
class TokenUsage:
    """Token usage of one request to an upstream, as the upstream counts it.

    Attributes:
        cached_tokens: how many of the prompt's it had already.
        completion_details: what it says of the completion tokens, for example how many of them
            were thoughts.
        replica: the server that answered, if a router says so; not compared.
        cost: if the upstream says it.
        written_tokens: how many of the prompt's it put into its cache, if it says so.
    """

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int = 0
    completion_details: Mapping[str, int] = field(default_factory=dict, hash=False)
    replica: str = field(default="", compare=False)
    cost: float | None = None
    written_tokens: int = 0

    @property
    def tokens(self) -> int:
        """Tokens read and generated."""
        return self.prompt_tokens + self.completion_tokens


NOTHING: Final = TokenUsage(0, 0)


def total_of(usages: Sequence[TokenUsage]) -> TokenUsage:
    """Sum of the usage of several requests."""
    details: Counter[str] = Counter()
    for spent in usages:
        details.update(spent.completion_details)
    return TokenUsage(
        prompt_tokens=sum(spent.prompt_tokens for spent in usages),
        completion_tokens=sum(spent.completion_tokens for spent in usages),
        cached_tokens=sum(spent.cached_tokens for spent in usages),
        completion_details=dict(details),
        cost=sum_of_known([spent.cost for spent in usages]),
        written_tokens=sum(spent.written_tokens for spent in usages),
    )


def sum_of_known(costs: Sequence[float | None]) -> float | None:
    """Sum of the costs that are known; None if none is."""
    known = [cost for cost in costs if cost is not None]
    return sum(known) if known else None


class Prices(BaseModel, frozen=True, extra="forbid"):
    """Prices per million tokens, in any currency.

    Attributes:
        prompt: of tokens read.
        completion: of tokens generated.
        cached_prompt: of tokens read from the upstream's cache; None is the price of `prompt`.
        written_prompt: of tokens written to it, likewise.
    """

    prompt: float = Field(ge=0)
    completion: float = Field(ge=0)
    cached_prompt: float | None = Field(default=None, ge=0)
    written_prompt: float | None = Field(default=None, ge=0)

    def cached_cost_of(self, spent: TokenUsage) -> float:
        """Cost of what was read from the cache."""
        price = self.prompt if self.cached_prompt is None else self.cached_prompt
        return spent.cached_tokens * price / _MILLION

    def written_cost_of(self, spent: TokenUsage) -> float:
        """Cost of what was written to the cache."""
        price = self.prompt if self.written_prompt is None else self.written_prompt
        return spent.written_tokens * price / _MILLION

    def cost_of(self, spent: TokenUsage) -> float:
        """Cost of some tokens."""
        fresh_tokens = spent.prompt_tokens - spent.cached_tokens - spent.written_tokens
        fresh = fresh_tokens * self.prompt + spent.completion_tokens * self.completion
        return fresh / _MILLION + self.cached_cost_of(spent) + self.written_cost_of(spent)


@dataclass(frozen=True, slots=True)
class UpstreamCalls:
    """Requests of a scorer to its upstream, and their tokens as the upstream counts them.

    Attributes:
        calls: requests that the upstream answered.
        cached_calls: requests that an earlier answer made unnecessary.
        prompt_tokens: tokens that the upstream read.
        completion_tokens: tokens that it generated.
    """

    calls: int = 0
    cached_calls: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0

    def __add__(self, other: "UpstreamCalls") -> "UpstreamCalls":
        return UpstreamCalls(
            self.calls + other.calls,
            self.cached_calls + other.cached_calls,
            self.prompt_tokens + other.prompt_tokens,
            self.completion_tokens + other.completion_tokens,
        )

"""Tokens and cost of a hosted policy's requests."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Self

from pydantic import NonNegativeFloat, NonNegativeInt

from qguide.qnet.records import Row
from qguide.qnet.work import Prices, TokenUsage, sum_of_known, total_of
from qguide.training.data.row_files import regular


class UpstreamUsage(Row):
    """Tokens and cost of requests to upstreams, as the upstreams count them.

    Attributes:
        prompt_tokens: tokens read, the cached ones included.
        cost: in the currency of the prices; None if no prices are given.
    """

    requests: NonNegativeInt = 0
    prompt_tokens: NonNegativeInt = 0
    cached_prompt_tokens: NonNegativeInt = 0
    completion_tokens: NonNegativeInt = 0
    cost: NonNegativeFloat | None = None

    @classmethod
    def of(cls, answers: Sequence[TokenUsage], prices: Prices | None) -> Self:
        """Usage of some answered requests."""
        spent = total_of(answers)
        return cls(
            requests=len(answers),
            prompt_tokens=spent.prompt_tokens,
            cached_prompt_tokens=spent.cached_tokens,
            completion_tokens=spent.completion_tokens,
            cost=prices.cost_of(spent) if prices else None,
        )

    def __add__(self, other: "UpstreamUsage") -> "UpstreamUsage":
        return UpstreamUsage(
            requests=self.requests + other.requests,
            prompt_tokens=self.prompt_tokens + other.prompt_tokens,
            cached_prompt_tokens=self.cached_prompt_tokens + other.cached_prompt_tokens,
            completion_tokens=self.completion_tokens + other.completion_tokens,
            cost=sum_of_known([self.cost, other.cost]),
        )

    def __str__(self) -> str:
        """The figures in one line, for the progress bar."""
        tokens = f"{self.prompt_tokens:,} tokens in, {self.completion_tokens:,} out"
        return tokens if self.cost is None else f"{tokens}, cost {self.cost:.2f}"


def recorded_usage(metrics: Path) -> UpstreamUsage:
    """Sum of the usage of all tasks in a run's `metrics.jsonl`."""
    total = UpstreamUsage()
    for line in regular(metrics).read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        if "task_id" in row and "usage" in row:
            total += UpstreamUsage.model_validate(row["usage"])
    return total

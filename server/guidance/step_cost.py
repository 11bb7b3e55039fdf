"""Cost of a step: its candidates, its judge, and what learning drew beyond one candidate."""

from dataclasses import replace

from qguide.qnet.decision.decision import Decision
from qguide.qnet.usage import Prices, TokenUsage, sum_of_known
from qguide.server.guidance.step_types import GuidedStepRequest, GuidedStepResult
from qguide.server.learning.cost import Spent
from qguide.server.own_bodies.answers import StepCost
from qguide.server.settings.settings import Settings


def prices_of(asked: GuidedStepRequest, settings: Settings) -> Prices | None:
    """The operator's prices of the policy's upstream; the highest of several policies'."""
    names = [share.name for share in asked.options.policies or ()] or [asked.policy.name]
    upstreams = [settings.upstreams[name] for name in names if name in settings.upstreams]
    prices = [upstream.prices for upstream in upstreams if upstream.prices]
    return max(prices, key=lambda one: (one.completion, one.prompt), default=None)


def priced(
    taken: GuidedStepResult, asked: GuidedStepRequest, settings: Settings, judge: str
) -> GuidedStepResult:
    """The result with its cost, as far as prices or an upstream tell it.

    Args:
        judge: the judge's upstream; "" if a trained Q model scored.
    """
    usage, prices = taken.decision.usage, prices_of(asked, settings)
    if taken.policies:
        sample = sum_of_known([each.cost for each in taken.policies])
    else:
        sample = step_cost(taken.decision, prices)
    asking, score = settings.upstreams.get(judge), None
    if asking and asking.prices and usage.upstream:
        spent = TokenUsage(usage.upstream.prompt_tokens, usage.upstream.completion_tokens)
        score = asking.prices.cost_of(spent)
    total = sum_of_known([sample, score])
    if total is None:
        return taken
    own = None if taken.policies else prices
    kept = TokenUsage(0, 0, usage.cached_prompt_tokens, written_tokens=usage.written_prompt_tokens)
    cost = StepCost(
        sample=sample,
        cached=own.cached_cost_of(kept) if own else None,
        written=own.written_cost_of(kept) if own else None,
        score=score,
        total=total,
    )
    return replace(taken, cost=cost)


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

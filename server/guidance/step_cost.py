"""Cost of a step: its candidates, its scores, and what learning drew beyond one candidate."""

from dataclasses import dataclass, replace

from qguide.qnet.decision.decision import Decision
from qguide.qnet.decision.threshold import ActionTaken
from qguide.qnet.policies.pool import PolicyPool
from qguide.qnet.usage import Prices, TokenUsage, sum_of_known, total_of
from qguide.server.guidance.step_types import GuidedStepRequest, GuidedStepResult
from qguide.server.learning.tally import Spent
from qguide.server.own_bodies.answers import StepCost
from qguide.server.settings.settings import Settings
from qguide.server.settings.thresholds import ThresholdSettings


@dataclass(frozen=True, slots=True)
class StepPrices:
    """The operator's prices of a step's upstreams; None where there are none.

    Attributes:
        own: of the policy's; the highest of several policies' that draw.
        escalated: of the one that a threshold escalates to.
    """

    own: Prices | None = None
    escalated: Prices | None = None


def prices_of(
    asked: GuidedStepRequest, threshold: ThresholdSettings | None, settings: Settings
) -> StepPrices:
    """The prices of a step that has this threshold."""
    model = asked.policy.model
    names = model.names if isinstance(model, PolicyPool) else (asked.policy.name,)
    upstreams = [settings.upstreams[name] for name in names if name in settings.upstreams]
    prices = [upstream.prices for upstream in upstreams if upstream.prices]
    further = settings.upstreams.get(threshold.policy) if threshold else None
    return StepPrices(
        max(prices, key=lambda one: (one.completion, one.prompt), default=None),
        further.prices if further else None,
    )


def priced(
    taken: GuidedStepResult, prices: StepPrices, settings: Settings, scorer: str
) -> GuidedStepResult:
    """The result with its cost, as far as prices or an upstream tell it.

    Args:
        scorer: the upstream that scored; "" if none did.
    """
    usage, (own, further) = taken.decision.usage, _spent(taken.decision)
    costs = [each.cost for each in taken.policies] or [cost_of(own, prices.own)]
    if further.tokens:
        costs.append(cost_of(further, prices.escalated))
    sample = sum_of_known(costs)
    asking, score = settings.upstreams.get(scorer), None
    if asking and asking.prices and usage.upstream:
        spent = TokenUsage(usage.upstream.prompt_tokens, usage.upstream.completion_tokens)
        score = asking.prices.cost_of(spent)
    total = sum_of_known([sample, score])
    if total is None:
        return taken
    drawn = ((own, None if taken.policies else prices.own), (further, prices.escalated))
    cost = StepCost(
        sample=sample,
        cached=sum_of_known([of.cached_cost_of(spent) for spent, of in drawn if of]),
        written=sum_of_known([of.written_cost_of(spent) for spent, of in drawn if of]),
        score=score,
        total=total,
    )
    return replace(taken, cost=cost)


def cost_of(spent: TokenUsage, prices: Prices | None) -> float | None:
    """Cost of some requests: the upstream's own word, or by the operator's prices."""
    if spent.cost is not None:
        return spent.cost
    return prices.cost_of(spent) if prices else None


def _spent(decision: Decision) -> tuple[TokenUsage, TokenUsage]:
    """Usage of the policy's own draws, and of those of the policy that the step escalated to."""
    usage, other = decision.usage, total_of([one.spent for one in _escalations(decision)])
    told = usage.cost
    if told is not None and other.cost is not None:
        told = (told - other.cost) or None  # nothing is left where the policy's own told nothing
    own = TokenUsage(
        usage.prompt_tokens - other.prompt_tokens,
        usage.completion_tokens - other.completion_tokens,
        usage.cached_prompt_tokens - other.cached_tokens,
        cost=told,
        written_tokens=usage.written_prompt_tokens - other.written_tokens,
    )
    return own, other


def _escalations(decision: Decision) -> list[ActionTaken]:
    below = decision.below_threshold
    return [one for one in below.taken if one.action == "escalate"] if below else []


def extra_of(decision: Decision, prices: StepPrices) -> Spent:
    """Extra cost of a step's candidates, beside one of the policy's own.

    Where only the upstream says what the step cost, it is (M - 1) / M of that, the most that it
    can be.
    """
    own, escalated = _spent(decision)
    drawn = len(decision.candidates) - sum(len(one.candidates) for one in _escalations(decision))
    further = Spent(escalated.tokens, cost_of(escalated, prices.escalated) or 0.0)
    if drawn < 2:
        return further
    once = max(candidate.prompt_tokens for candidate in decision.own_candidates)
    again = max(0, own.prompt_tokens - (once or own.prompt_tokens // drawn))
    generated = own.completion_tokens * (drawn - 1) // drawn
    extra = TokenUsage(again, generated, min(own.cached_tokens, again))
    if prices.own is None and own.cost is not None:
        extra = replace(extra, cost=own.cost * (drawn - 1) / drawn)
    return further.plus(Spent(extra.tokens, cost_of(extra, prices.own) or 0.0))

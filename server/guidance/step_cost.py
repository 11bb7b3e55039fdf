"""Cost of a step: its candidates, its scores, and what learning drew beyond one candidate."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain

from qguide.qnet.decision.decision import Decision
from qguide.qnet.decision.threshold import ActionTaken
from qguide.qnet.policies.pool import PolicyPool
from qguide.qnet.types import Candidate, spent_on
from qguide.qnet.work import Prices, TokenUsage, UpstreamCalls, sum_of_known, total_of
from qguide.server.guidance.step_types import GuidedStepRequest, GuidedStepResult
from qguide.server.learning.tally import Spent
from qguide.server.own_bodies.answers import StepCost
from qguide.server.settings.settings import Settings
from qguide.server.settings.thresholds import ThresholdSettings

_Draws = list[tuple[TokenUsage, Prices | None]]


@dataclass(frozen=True, slots=True)
class StepPrices:
    """The operator's prices of a step's upstreams; None where there are none.

    Attributes:
        own: of the policy's; the highest of several policies' that draw.
        escalated: of the one that a threshold escalates to.
        members: of several policies that draw, by name; None without prices.
        judge: of the one that scores.
    """

    own: Prices | None = None
    escalated: Prices | None = None
    members: Mapping[str, Prices | None] = field(default_factory=dict)
    judge: Prices | None = None


def prices_of(
    asked: GuidedStepRequest, threshold: ThresholdSettings | None, settings: Settings, scorer: str = ""
) -> StepPrices:
    """The prices of a step that has this threshold.

    Args:
        scorer: the upstream that scores; "" if none does.
    """
    prices_by = {name: upstream.prices for name, upstream in settings.upstreams.items()}
    model = asked.policy.model
    names = model.names if isinstance(model, PolicyPool) else ()
    known = [prices for name in names or (asked.policy.name,) if (prices := prices_by.get(name))]
    return StepPrices(
        max(known, key=lambda one: (one.completion, one.prompt), default=None),
        prices_by.get(threshold.policy) if threshold else None,
        {name: prices_by.get(name) for name in names},
        prices_by.get(scorer),
    )


def priced(taken: GuidedStepResult, prices: StepPrices) -> GuidedStepResult:
    """The result with its cost and its actions', as far as prices or an upstream tell them."""
    decision = taken.decision
    actions = decision.below_threshold.taken if decision.below_threshold else ()
    own = decision.own_candidates
    draws = _by_member(own, prices) or [(spent_on(own), prices.own)]
    draws_of = [_draws_of(one, decision, prices) for one in actions]
    return replace(
        taken,
        cost=_cost([*draws, *chain(*draws_of)], decision.usage.upstream, prices),
        action_costs=tuple(_cost(drawn, one.judged, prices) for drawn, one in zip(draws_of, actions, strict=True)),
    )


def stage_costs(taken: GuidedStepResult) -> dict[str, float]:
    """Cost of a step by stage: drawing, scoring, and each action with what scoring it cost."""
    if taken.cost is None:
        return {}
    costs = {"sample": taken.cost.sample or 0.0, "score": taken.cost.score or 0.0}
    below = taken.decision.below_threshold
    for action, cost in zip(below.taken if below else (), taken.action_costs, strict=True):
        if cost is not None:
            costs[action.action] = cost.total
            costs["sample"] -= cost.sample or 0.0
            costs["score"] -= cost.score or 0.0
    return costs


def _draws_of(action: ActionTaken, decision: Decision, prices: StepPrices) -> _Draws:
    """An action's draws with their prices; what could not be scored is at the policy's highest."""
    if not action.spent.tokens:
        return []
    if action.action == "escalate":
        return [(action.spent, prices.escalated)]
    drawn = [decision.candidates[at] for at in action.candidates]
    return (drawn and _by_member(drawn, prices)) or [(action.spent, prices.own)]


def _by_member(drawn: Sequence[Candidate], prices: StepPrices) -> _Draws:
    """The draws of each of several policies; empty where one drew alone."""
    return [(spent_on([one for one in drawn if one.policy == name]), of) for name, of in prices.members.items()]


def _cost(draws: _Draws, judged: UpstreamCalls | None, prices: StepPrices) -> StepCost | None:
    sample = sum_of_known([cost_of(spent, of) for spent, of in draws])
    score = None
    if prices.judge and judged:
        score = prices.judge.cost_of(TokenUsage(judged.prompt_tokens, judged.completion_tokens))
    total = sum_of_known([sample, score])
    if total is None:
        return None
    return StepCost(
        sample=sample,
        cached=sum_of_known([of.cached_cost_of(spent) for spent, of in draws if of]),
        written=sum_of_known([of.written_cost_of(spent) for spent, of in draws if of]),
        score=score,
        total=total,
    )


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

"""The request of a guided step, and its result: what is told and recorded of it, and what it cost."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any, Final

from qguide.qnet.decision.decision import Decision
from qguide.qnet.decision.guide import Deadline
from qguide.qnet.decision.threshold import ActionTaken
from qguide.qnet.errors import InvalidRequestError, MalformedHistoryError
from qguide.qnet.records import ThresholdActionRow
from qguide.qnet.types import Candidate, History, Sampling, spent_on
from qguide.qnet.work import Prices, TokenUsage, UpstreamCalls, sum_of_known, total_of
from qguide.server.episodes.service import OUTCOME_HEADER, Episodes
from qguide.server.episodes.state import ServedEpisode
from qguide.server.guidance.readable_view import ReadableView
from qguide.server.http.errors import BelowThresholdError
from qguide.server.learning.service import Learning
from qguide.server.learning.tally import Spent
from qguide.server.observability.metrics import Metrics
from qguide.server.own_bodies.answers import PolicyUsage, StepCost, ThresholdResult, Timings, Window
from qguide.server.own_bodies.history import check_count, check_order, check_readable, check_size
from qguide.server.own_bodies.schemas import ChatMessage, StepOptions
from qguide.server.q_models.registry import Models
from qguide.server.q_models.served import ServedPolicy, ServedQModel
from qguide.server.settings.settings import Settings
from qguide.server.settings.thresholds import ThresholdSettings

_Draws = list[tuple[TokenUsage, Prices | None]]
_AS_DECIDED: Final = ("chosen", "reason", "guided", "unguided_reason", "prior_by", "tau", "draws_saved", "perturbed")


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestService:
    """Fields that the services of one request share."""

    settings: Settings
    models: Models
    episodes: Episodes
    metrics: Metrics
    deadline: Deadline
    session_id: str | None = None  # the episode of steps whose options name none; from the URL or `X-Session-ID`
    outcome: float | None = None  # ends the episode after the step; from `X-QGuide-Outcome`
    earned: float | None = None  # by the episode before the step; from `X-QGuide-Earned`, before what options say
    learning: Learning | None = None

    def history(self, messages: Sequence[ChatMessage]) -> History:
        """Validate messages and convert them to a history that a Q model can read."""
        check_count(messages, self.settings.max_history_messages)
        history = tuple(message.to_message() for message in messages)
        check_size("messages", [message.text for message in history], self.settings.max_text_bytes)
        check_readable(history)
        check_order(history)
        return history

    async def begin_step(
        self, episode_id: str | None, *, earned: float | None, strict: bool = True
    ) -> ServedEpisode | None:
        """The episode before a step; None if it is new or the request names none; see `Episodes.begin_step`."""
        if episode_id is not None:
            return await self.episodes.begin_step(episode_id, outcome=self.outcome, earned=earned, strict=strict)
        for name, said in ((f"the header {OUTCOME_HEADER}", self.outcome), ("earned", earned)):
            if said is not None:
                raise InvalidRequestError(
                    f"{name} is {said:g}, which is of an episode, and this request names no episode; name it by "
                    "X-Session-ID, the path /episodes/ID/ or episode_id"
                )
        return None


@dataclass(frozen=True, slots=True)
class GuidedStepRequest:
    """A validated request for an action."""

    policy: ServedPolicy
    history: History
    sampling: Sampling
    num_candidates: int  # M
    options: StepOptions
    n: int = 1  # number of candidates that the caller wants, best first
    # why Q models cannot read this history as it is (the policy can); None if they can
    unreadable: MalformedHistoryError | None = None
    view: ReadableView | None = None  # what Q models can read of such a history; None if they can read nothing of it
    warnings: tuple[str, ...] = ()
    # the session that the body names (`prompt_cache_key`), "" for none; once the step is in an episode, the session
    # that named it
    agent_session: str = ""

    @property
    def has_tools(self) -> bool:
        """True if the policy may call tools."""
        given = self.sampling.parameters
        return bool(given.get("tools") or given.get("functions"))

    @property
    def read_history(self) -> History:
        """The history as Q models read it."""
        return self.view.history if self.view else self.history


@dataclass(frozen=True, slots=True)
class GuidedStepResult:
    """The decision of a guided step, its models, its duration and its episode."""

    decision: Decision
    policy: str
    scored_by: Mapping[str, Any]
    total_ms: float
    episode_id: str | None = None
    action_policies: tuple[str, ...] = ()  # the policy of each action below the threshold
    policies: tuple[PolicyUsage, ...] = ()  # of each policy, where several drew
    cost: StepCost | None = None  # None where nothing tells it
    action_costs: tuple[StepCost | None, ...] = ()  # of each action below the threshold

    @property
    def told(self) -> dict[str, Any]:
        """Fields of `StepAnswer`."""
        decision, timings = self.decision, self.decision.timings
        of_some_steps = {
            "window": Window.of(decision.window),
            "threshold": ThresholdResult.of(decision.below_threshold, self.action_policies, self.action_costs),
            "policies": list(self.policies) or None,
            "cost": self.cost,
            "domain_distance": decision.distance,
        }
        return {
            **{name: getattr(decision, name) for name in _AS_DECIDED},
            "warnings": list(decision.warnings),
            "policy": self.policy,
            "timings_ms": Timings(
                sample=timings.sample_ms, paraphrase=timings.paraphrase_ms, score=timings.score_ms, total=self.total_ms
            ),
            **self.scored_by,
            **{name: value for name, value in of_some_steps.items() if value is not None},
        }


def action_policies(decision: Decision, settings: ThresholdSettings | None, own: str) -> tuple[str, ...]:
    """Name of the policy that drew for each action; "" for `stop`, which draws nothing."""
    if decision.below_threshold is None or settings is None:
        return ()
    drawers = {"refine": own, "escalate": settings.policy, "stop": ""}
    return tuple(drawers[taken.action] for taken in decision.below_threshold.taken)


def action_rows(decision: Decision, policies: Sequence[str]) -> tuple[ThresholdActionRow, ...]:
    """The actions of a step as they are recorded."""
    below = decision.below_threshold
    if below is None:
        return ()
    q_before = [below.best_q, *(taken.best_q for taken in below.taken)]
    return tuple(
        ThresholdActionRow(
            action=taken.action,
            outcome=taken.outcome,
            policy=policy,
            candidates=tuple(decision.candidates[i].message.text for i in taken.candidates),
            q_before=before,
            q_after=taken.best_q,
            prompt_tokens=taken.spent.prompt_tokens,
            completion_tokens=taken.spent.completion_tokens,
        )
        for taken, policy, before in zip(below.taken, policies, q_before, strict=False)
    )


def require_not_stopped(decision: Decision, q_model: ServedQModel) -> None:
    """Refuse to answer with a candidate where the operator's threshold says so."""
    below = decision.below_threshold
    if below is None or not below.stopped:
        return
    best_q, usage = below.taken[-1].best_q, decision.usage
    raise BelowThresholdError(
        f"stopped: the best of {len(decision.candidates)} candidates has a Q of {best_q:.3g}, below the threshold of "
        f"{below.below:g} that the operator has set for {q_model.id} (QGUIDE_THRESHOLDS), so no action is answered; "
        "ask a person, or change the task",
        details={
            "below": below.below,
            "best_q": best_q,
            "q_model": q_model.name,
            "q_model_version": q_model.version,
            "num_candidates": len(decision.candidates),
            "prompt_tokens": usage.prompt_tokens,
            "completion_tokens": usage.completion_tokens,
            "scored_tokens": usage.scored_tokens,
        },
    )


@dataclass(frozen=True, slots=True)
class StepPrices:
    """The operator's prices of a step's upstreams; None where there are none."""

    own: Prices | None = None  # of the policy's; the highest of several policies' that draw
    escalated: Prices | None = None
    # of several policies that draw, by name; None without prices
    members: Mapping[str, Prices | None] = field(default_factory=dict)
    judge: Prices | None = None


def prices_of(
    asked: GuidedStepRequest, threshold: ThresholdSettings | None, settings: Settings, scorer: str = ""
) -> StepPrices:
    """The prices of a step that has this threshold."""
    prices_by = {name: upstream.prices for name, upstream in settings.upstreams.items()}
    names = asked.policy.pool.names if asked.policy.pool else ()
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

    Where only the upstream says what the step cost, it is (M - 1) / M of that, the most that it can be.
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

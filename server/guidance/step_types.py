"""The request of a guided step, what its options come to beside the settings, and its result."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from qguide.qnet.decision.decision import Decision, Fallback
from qguide.qnet.decision.early_stop import UntilDecided
from qguide.qnet.decision.guide import Deadline
from qguide.qnet.decision.history_window import LongHistory
from qguide.qnet.decision.selection import DEFAULT_TAU, PriorBy, SelectionName
from qguide.qnet.decision.threshold import Threshold
from qguide.qnet.errors import InvalidRequestError, MalformedHistoryError
from qguide.qnet.features.domain import Domain
from qguide.qnet.records import ThresholdActionRow
from qguide.qnet.types import History, Sampling
from qguide.server.episodes.service import OUTCOME_HEADER, Episodes
from qguide.server.episodes.state import Episode
from qguide.server.guidance.readable_view import ReadableView
from qguide.server.http.errors import BelowThresholdError
from qguide.server.learning.service import Learning
from qguide.server.observability.metrics import Metrics
from qguide.server.own_bodies.answers import PolicyUsage, StepCost, ThresholdResult, Timings, Window
from qguide.server.own_bodies.history import to_history
from qguide.server.own_bodies.schemas import ChatMessage, StepOptions
from qguide.server.q_models.registry import Models
from qguide.server.q_models.served import ServedPolicy, ServedQModel
from qguide.server.settings.settings import Settings
from qguide.server.settings.thresholds import ThresholdSettings

OutOfDomain = Literal["unguided", "guide"]
"""Answer to a state outside the Q model's domain: the likeliest candidate, or the Q model's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestService:
    """Fields that the services of one request share.

    Attributes:
        session_id: the episode of steps whose options name none; from the URL or `X-Session-ID`.
        outcome: ends the episode after the step; from `X-QGuide-Outcome`.
        earned: by the episode before the step; from `X-QGuide-Earned`, before what options say.
        learning: chooses the Q model of steps that name none; None: the server does not learn.
    """

    settings: Settings
    models: Models
    episodes: Episodes
    metrics: Metrics
    deadline: Deadline
    session_id: str | None = None
    outcome: float | None = None
    earned: float | None = None
    learning: Learning | None = None

    def history(self, messages: Sequence[ChatMessage]) -> History:
        """Validate messages and convert them to a history."""
        most, most_bytes = self.settings.max_history_messages, self.settings.max_text_bytes
        return to_history(messages, most=most, most_bytes=most_bytes)

    async def begin_step(self, episode_id: str | None, *, earned: float | None, strict: bool = True) -> Episode | None:
        """The episode before a step; None if it is new or the request names none; see `Episodes.begin_step`."""
        if episode_id is not None:
            return await self.episodes.begin_step(episode_id, outcome=self.outcome, earned=earned, strict=strict)
        for name, said in ((f"the header {OUTCOME_HEADER}", self.outcome), ("earned", earned)):
            if said is not None:
                raise InvalidRequestError(
                    f"{name} is {said:g}, which is of an episode, and this request names no episode; "
                    "name it by X-Session-ID, the path /episodes/ID/ or episode_id"
                )
        return None


@dataclass(frozen=True, slots=True)
class GuidedStepRequest:
    """A validated request for an action.

    Attributes:
        num_candidates: M.
        n: number of candidates that the caller wants, best first.
        unreadable: why Q models cannot read this history as it is (the policy can); None if they
            can.
        view: what Q models can read of such a history; None if they can read nothing of it.
        warnings: what could not be passed on to the policy, and why.
        agent_session: the session that the body names (`prompt_cache_key`), "" for none; once the
            step is in an episode, the session that named it.
    """

    policy: ServedPolicy
    history: History
    sampling: Sampling
    num_candidates: int
    options: StepOptions
    n: int = 1
    unreadable: MalformedHistoryError | None = None
    view: ReadableView | None = None
    warnings: tuple[str, ...] = ()
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
    """The decision of a guided step, its models, its duration and its episode.

    Attributes:
        scored_by: the Q model, as answers name it.
        policies: usage of each policy, where several drew.
        cost: None where nothing tells it.
        action_policies: the policy of each action below the threshold.
        action_costs: what each of them cost, likewise.
    """

    decision: Decision
    policy: str
    scored_by: Mapping[str, Any]
    total_ms: float
    episode_id: str | None = None
    action_policies: tuple[str, ...] = ()
    policies: tuple[PolicyUsage, ...] = ()
    cost: StepCost | None = None
    action_costs: tuple[StepCost | None, ...] = ()

    @property
    def told(self) -> dict[str, Any]:
        """Fields of `StepAnswer`."""
        decision, timings = self.decision, self.decision.timings
        of_some_steps = {
            "window": Window.of(decision.window),
            "threshold": ThresholdResult.of(decision.below_threshold, self.action_policies, self.action_costs),
            "policies": list(self.policies) or None,
            "cost": self.cost,
        }
        return {
            "chosen": decision.chosen,
            "reason": decision.reason,
            "guided": decision.guided,
            "unguided_reason": decision.unguided_reason,
            "prior_by": decision.prior_by,
            "tau": decision.tau,
            "draws_saved": decision.draws_saved,
            "perturbed": decision.perturbed,
            "warnings": list(decision.warnings),
            "policy": self.policy,
            "timings_ms": Timings(
                sample=timings.sample_ms, paraphrase=timings.paraphrase_ms, score=timings.score_ms, total=self.total_ms
            ),
            **self.scored_by,
            **{name: value for name, value in of_some_steps.items() if value is not None},
        }


class SelectionOptions(Protocol):
    """Fields of a request that concern the choice."""

    @property
    def selection(self) -> SelectionName | None: ...  # noqa: D102
    @property
    def tau(self) -> float | None: ...  # noqa: D102
    @property
    def out_of_domain(self) -> OutOfDomain | None: ...  # noqa: D102


@dataclass(frozen=True, slots=True)
class SelectionRule:
    """Rule for the choice of one request; see `qguide.qnet.decision.decision.Guidance`."""

    selection: SelectionName
    tau: float
    prior: PriorBy
    greedy_weight: float = 0.0


def selection_rule(
    options: SelectionOptions, settings: Settings, q_model: ServedQModel, *, prior: PriorBy | None = None
) -> SelectionRule:
    """The rule by which a request's action is chosen."""
    fitted = q_model.manifest.prior if q_model.manifest else None
    wanted = options.selection or (None if options.tau is None else "posterior")
    known: SelectionName = "argmax" if fitted is None else "posterior"
    selection = wanted or settings.selection or known
    by = prior or settings.prior or (fitted.by if fitted else "votes")
    # It was fitted beside the prior of that source.
    weighed = fitted is not None and selection == "posterior" and by == fitted.by
    taus = (options.tau, settings.tau, fitted.tau if fitted else None, DEFAULT_TAU)
    return SelectionRule(
        selection=selection,
        tau=next(tau for tau in taus if tau is not None),
        prior=by,
        greedy_weight=fitted.greedy_weight if fitted and weighed else 0.0,
    )


def fallback_of(asked: GuidedStepRequest, settings: Settings) -> Fallback:
    """The answer if no Q is available.

    An agent in front of an upstream goes on without a Q, as it did before QGuide was between them.
    """
    default: Fallback = "first" if asked.policy.upstream_model else "error"
    return asked.options.fallback or settings.fallback or default


def long_history_mode(asked: GuidedStepRequest, settings: Settings) -> LongHistory:
    """The answer to a history that is too long for the Q model."""
    wanted, own = asked.options, settings.long_history
    if own is None and settings.fallback is None and asked.policy.upstream_model:
        own = "window"
    if wanted.long_history is not None or own == "window":
        return wanted.long_history or "window"
    return wanted.fallback or own or fallback_of(asked, settings)


def domain_of(q_model: ServedQModel, wanted: OutOfDomain | None, settings: Settings) -> Domain | None:
    """The domain that a request has to be in; None where it is guided all the same."""
    mode = wanted or settings.out_of_domain
    return q_model.domain if mode == "unguided" else None


async def reason_outside(domain: Domain | None, history: History) -> str:
    """The reason why a state is outside; "" inside. Read on a thread: a history may be long."""
    if domain is None:
        return ""
    distance = await asyncio.to_thread(domain.distance, history)
    return distance.reason if distance.outside else ""


def is_adaptive(options: StepOptions, q_model: ServedQModel, *, in_episodes: bool) -> bool:
    """True if M is adaptive, which compares Q of one step with Q of the step before.

    Args:
        in_episodes: the setting: it is so where the caller says nothing, and the step is one of an
            episode.
    """
    if not q_model.ranks:
        by_setting = in_episodes and options.episode_id is not None
        return by_setting if options.adaptive is None else options.adaptive
    if options.adaptive:
        raise InvalidRequestError(
            f"adaptive compares Q with the previous step's, but {q_model.id} is "
            f"{q_model.kind} that ranks the candidates of one step; leave adaptive out, or "
            f"{q_model.comparable}"
        )
    return False


def until_of(options: StepOptions, q_model: ServedQModel) -> UntilDecided | None:
    """The stop of draws that can change nothing; None where all M are drawn.

    Where the highest Q is not known, any further draw could change the choice by its Q.
    """
    if not options.until_decided and options.max_wait_s is None:
        return None
    if q_model.only_votes:
        return UntilDecided()
    if q_model.ranks and not options.until_decided:
        return None
    if q_model.ranks:
        raise InvalidRequestError(
            f"until_decided compares what was drawn with what may come, but {q_model.id} ranks the "
            "candidates of one step; leave it out, or name another Q model, such as the rule "
            "'votes'"
        )
    return UntilDecided(highest_q=q_model.highest_q)


def previous_q(options: StepOptions, history: History, episode: Episode | None, q_model: str) -> float | None:
    """The Q that adaptive M has to exceed; None at an episode's first step."""
    if options.previous_q is None and options.episode_id is None:
        raise InvalidRequestError(
            "adaptive compares Q with the previous step's, but neither episode_id nor previous_q "
            "is given; send one of them"
        )
    if options.previous_q is None and episode is not None:
        return episode.previous_q(history, q_model=q_model)
    return options.previous_q


def threshold_settings(thresholds: Mapping[str, ThresholdSettings], q_model: ServedQModel) -> ThresholdSettings | None:
    """The threshold of a Q model: of its version, or of all versions with its name."""
    if q_model.ranks:
        return None
    return thresholds.get(q_model.id) or thresholds.get(q_model.name)


def threshold_of(settings: ThresholdSettings | None) -> Threshold | None:
    """The threshold as the decision reads it."""
    if settings is None:
        return None
    return Threshold(settings.below, settings.actions, settings.num_candidates)


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
        f"stopped: the best of {len(decision.candidates)} candidates has a Q of {best_q:.3g}, "
        f"below the threshold of {below.below:g} that the operator has set for {q_model.id} "
        "(QGUIDE_THRESHOLDS), so no action is answered; ask a person, or change the task",
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

"""Thresholds of served Q models in guided steps: which one counts, and what its actions become."""

from collections.abc import Mapping, Sequence

from qguide.qnet.decision.decision import Decision
from qguide.qnet.decision.threshold import Threshold
from qguide.qnet.records import ThresholdActionRow
from qguide.server.errors.types import BelowThresholdError
from qguide.server.q_models.served import ServedQModel
from qguide.server.settings.thresholds import ThresholdSettings


def threshold_settings(
    thresholds: Mapping[str, ThresholdSettings], q_model: ServedQModel
) -> ThresholdSettings | None:
    """The threshold of a Q model: of its version, or of all versions with its name."""
    if q_model.ranks:
        return None
    return thresholds.get(q_model.id) or thresholds.get(q_model.name)


def threshold_of(settings: ThresholdSettings | None) -> Threshold | None:
    """The threshold as the decision reads it."""
    if settings is None:
        return None
    return Threshold(settings.below, settings.actions, settings.num_candidates)


def action_policies(
    decision: Decision, settings: ThresholdSettings | None, own: str
) -> tuple[str, ...]:
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

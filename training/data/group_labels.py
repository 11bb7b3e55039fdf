"""Labels of decision groups: the value of each candidate, from its continuations."""

from dataclasses import dataclass

from pydantic import BaseModel, ConfigDict, Field

from qguide.qnet.types import History
from qguide.training.algorithms.step_values import (
    Ending,
    ValueScale,
    discounted_value,
    linear_value,
    steps_left,
)
from qguide.training.data.decision_groups import CandidateRow, DecisionGroupsRow, DecisionRow


class GroupLabels(BaseModel):
    """Options for computing a candidate's label from its continuations.

    Attributes:
        scale: "linear" in steps, or "discounted", which is outcome_reward * gamma^steps.
        step_cost: cost of a step; for "linear" only.
        gamma: discount per step; for "discounted" only.
        horizon: steps counted for a failed continuation, and at most for any other.
        noop_cost_steps: extra cost, in steps, of an action without effect that follows another one.
            It costs an expert one step, but a policy may be caught in a loop.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    scale: ValueScale = "linear"
    step_cost: float = Field(default=0.02, gt=0)
    gamma: float = Field(default=0.9, gt=0, le=1)
    horizon: int = Field(default=40, ge=1)
    noop_cost_steps: float = Field(default=4.0, ge=0)


@dataclass(frozen=True, slots=True)
class DecisionState:
    """One state of an episode and its candidates.

    Attributes:
        after_noop: the environment did not understand the action before it.
    """

    history: History
    row: DecisionRow
    after_noop: bool


def decisions_of(row: DecisionGroupsRow, *, with_single: bool = False) -> list[DecisionState]:
    """The states with more than one distinct candidate.

    Args:
        row: the decisions of an episode.
        with_single: include the states with one candidate.
    """
    found = []
    after_noop = False
    for history, decision in row.states():
        if with_single or len(decision.candidates) > 1:
            found.append(DecisionState(history, decision, after_noop))
        after_noop = not decision.taken.valid
    return found


@dataclass(frozen=True, slots=True)
class CandidateLabel:
    """Label of a candidate.

    Attributes:
        steps: to the goal after it; fewer are better.
    """

    value: float
    steps: float


def candidate_label(
    candidate: CandidateRow, decision: DecisionState, labels: GroupLabels
) -> CandidateLabel:
    """The candidate's label on the scale of `labels`."""
    endings = [Ending(c.outcome_reward, c.steps - 1) for c in candidate.continuations]
    stuck = decision.after_noop and not candidate.valid
    extra_steps = labels.noop_cost_steps if stuck else 0.0
    steps = steps_left(endings, horizon=labels.horizon, extra_steps=extra_steps)
    if labels.scale == "linear":
        value = linear_value(steps, step_cost=labels.step_cost)
    else:
        value = discounted_value(endings, gamma=labels.gamma, extra_steps=extra_steps)
    return CandidateLabel(value, steps)

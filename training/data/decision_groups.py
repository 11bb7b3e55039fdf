"""Decision groups: a played episode with the value of every distinct candidate at every step.

    groups, rro ─▶ DecisionGroupsRow ─▶ train-qnet, pairs, choice-regret

An exploration tree holds examples that a Q model may learn from. A decision group holds exactly
what it must choose between: the candidates that the policy draws in states it reaches itself. Rows
hold outcomes and steps only; labels are computed when the rows are read.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from statistics import fmean
from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, FiniteFloat, NonNegativeInt, model_validator

from qguide.qnet.records import MessageRow, NonEmpty, Reward, Row, TaskRow, messages_of, rows_of
from qguide.qnet.types import History, Message
from qguide.training.algorithms.step_values import (
    Ending,
    ValueScale,
    discounted_value,
    linear_value,
    steps_left,
)
from qguide.training.trajectory import Step, path_history, reply_key, step_messages, text_reply

ContinuationBy = Literal["expert", "policy", "guided"]
"""The agent that plays on after a candidate: the environment's expert, the policy alone, or the
policy guided by a Q model."""


class ContinuationRow(Row):
    """One continuation from a candidate to the end of its episode.

    Attributes:
        outcome_reward: reward at the end, whether the environment or a step limit ended it.
        steps: environment steps to the end or the limit, the candidate included.
        terminated: False if a step limit cut it off.
    """

    outcome_reward: Reward
    steps: Annotated[int, Field(ge=1)]
    terminated: bool


class CandidateRow(Row):
    """One distinct action drawn in a state.

    Attributes:
        action: the full text of the first reply drawn with this action ("Thought: … Action: …"),
            tool calls as lines of `Message.text`.
        count: how many draws have this action (equal `reply_key`), at least 1.
        logprob: log-probability of `action`, summed over its tokens at temperature 1; None if the
            policy does not report it.
        observation: the environment's answer.
        reward: outcome reward if the episode ends here.
        terminated: the episode ended here.
        valid: False if the environment did not understand the action.
        continuations: the episode played on from here: once by an expert, one or more times by a
            policy. If the action ended the episode, there is one, of a single step. A state
            that was not valued has only the taken candidate, whose continuation is the rest of the
            episode itself.
        sources: the agents that took this action; written only if several agents were asked.
        reply: the reply as a message, if it calls tools; None if `action` is all of it.
        observed: the messages after the reply, if they are not one user message of the text
            `observation`; None if they are.
    """

    action: str
    count: Annotated[int, Field(ge=1)]
    logprob: FiniteFloat | None = None
    observation: str
    reward: Reward = 0.0
    terminated: bool = False
    valid: bool = True
    continuations: Annotated[tuple[ContinuationRow, ...], Field(min_length=1)]
    sources: tuple[NonEmpty, ...] = Field(default=(), exclude_if=lambda sources: not sources)
    reply: MessageRow | None = Field(default=None, exclude_if=lambda reply: reply is None)
    observed: tuple[MessageRow, ...] | None = Field(
        default=None, exclude_if=lambda rows: rows is None
    )

    @classmethod
    def of_step(
        cls,
        step: Step,
        *,
        count: int,
        logprob: float | None,
        continuations: tuple[ContinuationRow, ...],
    ) -> Self:
        """The row of an action and its effect."""
        return cls(
            action=step.action,
            count=count,
            logprob=logprob,
            observation=step.observation,
            reward=step.reward,
            terminated=step.terminated,
            valid=step.valid,
            continuations=continuations,
            reply=None if step.reply is None else MessageRow.from_message(step.reply),
            observed=None if step.observed is None else rows_of(step.observed),
        )

    @property
    def outcome(self) -> float:
        """Mean outcome reward of the continuations."""
        return fmean(continuation.outcome_reward for continuation in self.continuations)

    def to_step(self) -> Step:
        """The action and its effect."""
        return Step(
            self.action,
            self.observation,
            self.reward,
            self.terminated,
            self.valid,
            reply=None if self.reply is None else self.reply.to_message(),
            observed=None if self.observed is None else messages_of(self.observed),
        )

    @property
    def message(self) -> Message:
        """The action as a chat message."""
        return text_reply(self.action) if self.reply is None else self.reply.to_message()

    @property
    def answer(self) -> History:
        """The messages that answer the action."""
        return step_messages(self.to_step())[1:]


class DecisionRow(Row):
    """One state's candidates and the one with which the episode went on.

    Attributes:
        candidates: distinct by `reply_key`, in the order in which they were first drawn; a single
            one if all draws agreed.
        chosen: index of the candidate that the episode took.
        greedy: index of the policy's greedy reply; None if it was not among the draws.
    """

    candidates: Annotated[tuple[CandidateRow, ...], Field(min_length=1)]
    chosen: NonNegativeInt
    greedy: NonNegativeInt | None = None

    @model_validator(mode="after")
    def _indices_are_candidates(self) -> Self:
        for name, index in (("chosen", self.chosen), ("greedy", self.greedy)):
            if index is not None and index >= len(self.candidates):
                raise ValueError(
                    f"{name} is {index}, but there are {len(self.candidates)} candidates"
                )
        keys = [reply_key(candidate.message) for candidate in self.candidates]
        if repeated := {key for key in keys if keys.count(key) > 1}:
            raise ValueError(f"{sorted(repeated)[0]!r} is among the candidates twice")
        return self

    @property
    def taken(self) -> CandidateRow:
        """The candidate that the episode took."""
        return self.candidates[self.chosen]


class DecisionGroupsRow(TaskRow):
    """One episode's decisions: `groups` and `rro` write it; `train-qnet` and `pairs` read it.

    Attributes:
        first_observation: the first decision's state, that is, the task and the first view.
        system: the system message before it, or None.
        decisions: one per step, in order. The state of decision t is `first_observation` followed
            by the taken action and its observation of every decision before t; see `states`.
        source: name of the policy that drew the candidates.
        continuation: the agent that played on after each candidate.
        seed: seed of the draws.
        completion_tokens: tokens generated for the candidates, not for their continuations.
        start: the task played from its first observation; only `rro` does that.
    """

    version: Literal[1] = 1
    first_observation: str
    system: str | None = None
    decisions: Annotated[tuple[DecisionRow, ...], Field(min_length=1)]
    source: NonEmpty
    continuation: ContinuationBy
    seed: int
    completion_tokens: NonNegativeInt = 0
    start: tuple[ContinuationRow, ...] = Field(default=(), exclude_if=lambda start: not start)

    @model_validator(mode="after")
    def _goes_on_until_it_ends(self) -> Self:
        for number, decision in enumerate(self.decisions[:-1], start=1):
            if decision.taken.terminated:
                raise ValueError(
                    f"decision {number} took an action that ended the episode, but "
                    f"{len(self.decisions)} decisions were made"
                )
        return self

    @property
    def outcome_reward(self) -> float:
        """The episode's own reward; if it was cut off, the reward of its last step."""
        return self.decisions[-1].taken.reward

    def states(self) -> Iterator[tuple[History, DecisionRow]]:
        """Each decision, preceded by the history for which its candidates were drawn."""
        steps: list[Step] = []
        before = () if self.system is None else (Message("system", self.system),)
        for decision in self.decisions:
            yield (*before, *path_history(self.first_observation, steps)), decision
            steps.append(decision.taken.to_step())


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

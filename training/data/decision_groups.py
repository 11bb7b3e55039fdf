"""Decision groups: one played episode with every distinct candidate of every step, each valued.

    groups ─▶ DecisionGroupsRow ─▶ train-qnet, pairs, choice-regret

An exploration tree holds what a Q model may learn from. A decision group holds exactly what it has
to choose among: the candidates that the policy draws in the states that it reaches itself. Rows
hold facts alone (outcomes and steps); labels are computed where the rows are read.
"""

import math
from collections.abc import Iterator
from typing import Annotated, Literal, Self

from pydantic import Field, FiniteFloat, NonNegativeInt, model_validator

from qnet.records import NonEmpty, Reward, Row, TaskRow
from qnet.types import History, Message
from training.trajectory import Step, action_key, path_history

ContinuationBy = Literal["expert", "policy", "guided"]
"""Agent that plays on after a candidate: the environment's expert, the policy alone, or the
policy guided by a Q model."""


class ContinuationRow(Row):
    """One play from a candidate to the end of its episode.

    Attributes:
        outcome_reward: the reward at the end, be it the environment's or a limit's.
        steps: environment steps from and including the candidate, until the end or the limit.
        terminated: False if a limit cut it off.
    """

    outcome_reward: Reward
    steps: Annotated[int, Field(ge=1)]
    terminated: bool


class CandidateRow(Row):
    """One distinct action among those drawn in a state.

    Attributes:
        action: the whole reply ("Thought: … Action: …"), the first drawn of those that act alike.
        count: how many of the draws act so (equal `action_key`), at least 1.
        logprob: of `action`, summed over its tokens at temperature 1; None if the policy does not
            say.
        observation: what the environment answered.
        reward: outcome reward of an episode that ends here.
        terminated: the episode ended here.
        valid: False where the action meant nothing to the environment.
        continuations: plays from here to the end; where the episode ended here, the one that it
            is. An expert's is one, roll-outs of a policy are several. A state that was not valued
            has the taken candidate alone, with the rest of the episode itself.
        sources: agents that took this action, where several were asked; written only then.
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

    @property
    def outcome(self) -> float:
        """Mean outcome reward of the continuations."""
        return math.fsum(c.outcome_reward for c in self.continuations) / len(self.continuations)

    @property
    def steps_to_end(self) -> float:
        """Mean steps of the continuations, this action included."""
        return sum(c.steps for c in self.continuations) / len(self.continuations)

    def to_step(self) -> Step:
        """The action and what it did."""
        return Step(self.action, self.observation, self.reward, self.terminated, self.valid)


class DecisionRow(Row):
    """One state's candidates and the one that the episode went on with.

    Attributes:
        candidates: distinct by `action_key`, in the order in which they were first drawn; a state
            in which all draws agreed has one.
        chosen: index of the candidate that the episode took.
        greedy: index of the policy's greedy reply; None where it was not among the draws.
    """

    candidates: Annotated[tuple[CandidateRow, ...], Field(min_length=1)]
    chosen: NonNegativeInt
    greedy: NonNegativeInt | None = None

    @model_validator(mode="after")
    def _indices_are_candidates(self) -> Self:
        for name, index in (("chosen", self.chosen), ("greedy", self.greedy)):
            if index is not None and index >= len(self.candidates):
                raise ValueError(f"{name} is {index}, but there are {len(self.candidates)}")
        keys = [action_key(candidate.action) for candidate in self.candidates]
        if repeated := {key for key in keys if keys.count(key) > 1}:
            raise ValueError(f"{sorted(repeated)[0]!r} is among the candidates twice")
        return self

    @property
    def taken(self) -> CandidateRow:
        """The candidate that the episode took."""
        return self.candidates[self.chosen]


class DecisionGroupsRow(TaskRow):
    """One episode's decisions: `groups` writes it; `train-qnet` and `choice-regret` read it.

    Attributes:
        first_observation: the first decision's state: the task and what is seen.
        system: the system message before it, None without one.
        decisions: one per step, in order. The state of decision t is `first_observation`, then
            the taken action and its observation of every decision before t: see `states`.
        source: name of the policy that drew.
        continuation: what played on after each candidate.
        seed: of the draws.
        completion_tokens: drawn for the candidates, those of the continuations left out.
    """

    version: Literal[1] = 1
    first_observation: str
    system: str | None = None
    decisions: Annotated[tuple[DecisionRow, ...], Field(min_length=1)]
    source: NonEmpty
    continuation: ContinuationBy
    seed: int
    completion_tokens: NonNegativeInt = 0

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
        """The episode's own reward; one that was cut off keeps that of its last step."""
        return self.decisions[-1].taken.reward

    def states(self) -> Iterator[tuple[History, DecisionRow]]:
        """Each decision after the chat that its candidates were drawn for."""
        steps: list[Step] = []
        before = () if self.system is None else (Message("system", self.system),)
        for decision in self.decisions:
            yield (*before, *path_history(self.first_observation, steps)), decision
            steps.append(decision.taken.to_step())

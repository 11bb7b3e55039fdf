"""Rows that the server and the offline jobs share, one JSON object per line.

    /v1/act, outcome ─┐
    explore ──────────┴▶ TreeRow ─▶ label
    /v1/act, outcome ──▶ OfferRow

A row that does not match is refused, never repaired. The version rises whenever an older reader
would misread a new row.
"""

from typing import Annotated, Final, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, FiniteFloat, NonNegativeInt, model_validator

ROOT_ID: Final = 0
"""The task before any action. It is not among a tree's nodes."""

MAX_REWARD: Final = 1e6
"""Largest magnitude of a reward in any row: sums and squares of such rewards stay finite and exact
enough. What a server or a job takes is configured within it."""

NonEmpty = Annotated[str, Field(min_length=1)]
Reward = Annotated[FiniteFloat, Field(ge=-MAX_REWARD, le=MAX_REWARD)]


class Row(BaseModel):
    """Base of all rows."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class TaskRow(Row):
    """Task that a row belongs to."""

    task_id: NonEmpty
    kind: str
    environment: NonEmpty


class NodeRow(Row):
    """One action of an exploration tree and its effect.

    Attributes:
        id: its place in the tree's `nodes`, counted from 1 (0 is the root).
        parent: the id of the node it follows, smaller than its own.
        depth: actions from the root, this one included.
        action: the whole reply ("Thought: … Action: …").
        reward: the outcome reward on a trajectory's last action, 0 on the others.
        terminated: the environment ended the episode here.
        valid: False if the action meant nothing to the environment.
        source: "expert" or a policy's name, of the trajectory that brought the node first.
    """

    id: Annotated[int, Field(ge=1)]
    parent: NonNegativeInt
    depth: Annotated[int, Field(ge=1)]
    action: str
    observation: str
    reward: Reward = 0.0
    terminated: bool = False
    valid: bool = True
    source: NonEmpty


class TreeRow(TaskRow):
    """One task's exploration tree (QLASS algorithm 2).

    `explore` writes it, and so does the server: one path for each episode with an outcome. `label`
    reads it.

    Attributes:
        first_observation: the root's state: the task and what is seen.
        system: the system message before it, None without one.
        nodes: parents before their children, ids 1, 2, 3, …
        draws: trajectories drawn from the policy.
        misses: attempts at a branch in which no candidate was new.
        completion_tokens: tokens drawn, those of discarded candidates included.
    """

    version: Literal[1] = 1
    first_observation: str
    system: str | None = None
    nodes: tuple[NodeRow, ...]
    draws: NonNegativeInt
    misses: NonNegativeInt = 0
    completion_tokens: NonNegativeInt = 0

    @model_validator(mode="after")
    def _nodes_form_a_tree(self) -> Self:
        depths = {ROOT_ID: 0}
        for expected_id, node in enumerate(self.nodes, start=1):
            if node.id != expected_id:
                raise ValueError(f"node {expected_id} has the id {node.id}")
            if node.parent not in depths:
                raise ValueError(f"node {node.id} comes before its parent {node.parent}")
            if node.depth != depths[node.parent] + 1:
                raise ValueError(f"node {node.id} has depth {node.depth}, not its parent's + 1")
            depths[node.id] = node.depth
        return self


class OfferedRow(Row):
    """A candidate of a served step; `q_value` is None where none was read."""

    content: str
    q_value: FiniteFloat | None


class OfferRow(Row):
    """One served step: its candidates, and what became of the episode.

    Attributes:
        depth: number of the step's action in the episode, from 1.
        chosen: the candidate that was answered.
        taken: the action in the episode, which is the agent's to decide.
        q_model: `name@version` that gave the Q-values.
        policy: the one that drew the candidates, "agent" where the caller brought its own.
    """

    task_id: NonEmpty
    depth: Annotated[int, Field(ge=1)]
    candidates: tuple[OfferedRow, ...]
    chosen: str
    taken: str
    q_model: str
    policy: NonEmpty
    outcome_reward: Reward

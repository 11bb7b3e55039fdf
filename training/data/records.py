"""The versioned rows that flow between jobs, one JSON object per line.

    collect ─▶ TrajectoryRow ─▶ sft
    explore ─▶ TreeRow ─▶ label ─▶ LabelRow ─▶ train-qnet

A row that does not match is refused, never repaired. The version rises whenever an older reader
would misread a new row.
"""

from collections.abc import Iterable
from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, FiniteFloat, NonNegativeInt, model_validator

from qnet.errors import RecordError
from qnet.types import Message, Role, ToolCall
from training.algorithms.labelling import Target
from training.algorithms.tree import EXPERT as EXPERT
from training.algorithms.tree import (
    ROOT_ID,
    Node,
    Tree,
    tree_of,
)
from training.trajectory import Step

NonEmpty = Annotated[str, Field(min_length=1)]


class _Row(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class ToolCallRow(_Row):
    """One call of a function; `arguments` is JSON as the model wrote it."""

    name: str
    arguments: str
    id: str = ""


class MessageRow(_Row):
    """One message of a chat; fields of tool calls are written only where there are any."""

    role: Role
    content: str
    tool_calls: tuple[ToolCallRow, ...] = Field(default=(), exclude_if=lambda calls: not calls)
    tool_call_id: str = Field(default="", exclude_if=lambda call_id: not call_id)

    @classmethod
    def from_message(cls, message: Message) -> Self:
        """The row of a message."""
        calls = (
            ToolCallRow(name=c.name, arguments=c.arguments, id=c.id) for c in message.tool_calls
        )
        return cls(
            role=message.role,
            content=message.content,
            tool_calls=tuple(calls),
            tool_call_id=message.tool_call_id,
        )

    def to_message(self) -> Message:
        """The message of this row."""
        calls = tuple(ToolCall(call.name, call.arguments, call.id) for call in self.tool_calls)
        return Message(self.role, self.content, calls, self.tool_call_id)


def rows_of(messages: Iterable[Message]) -> tuple[MessageRow, ...]:
    """The rows of a history."""
    return tuple(MessageRow.from_message(message) for message in messages)


def messages_of(rows: Iterable[MessageRow]) -> tuple[Message, ...]:
    """The history of these rows."""
    return tuple(row.to_message() for row in rows)


class TaskRow(_Row):
    """Task that a row belongs to."""

    task_id: NonEmpty
    kind: str
    environment: NonEmpty


class TrajectoryRow(TaskRow):
    """One played episode: `collect` writes it; `sft` and `explore` read it.

    Attributes:
        messages: the system message if the environment has one, the first observation, then
            actions and observations in turn; the last action's observation included.
        outcome_reward: the reward at the end, be it the environment's or a step limit's.
        terminated: False if a step limit cut the episode off.
        steps: actions taken.
        completion_tokens: tokens generated for the actions; 0 for an expert.
        source: "expert" or the policy's name.
        seed: of the sampling; None if nothing was sampled.
        mistakes: indices of the actions that SFT must not imitate.
    """

    version: Literal[1] = 1
    messages: tuple[MessageRow, ...]
    outcome_reward: FiniteFloat
    terminated: bool
    steps: NonNegativeInt
    completion_tokens: NonNegativeInt = 0
    source: NonEmpty
    seed: int | None = None
    mistakes: tuple[NonNegativeInt, ...] = ()

    @model_validator(mode="after")
    def _steps_are_the_actions(self) -> Self:
        if (actions := len(self.actions)) != self.steps:
            raise ValueError(f"steps is {self.steps}, but the messages hold {actions} actions")
        if any(number >= actions for number in self.mistakes):
            raise ValueError(f"mistakes are {self.mistakes}, but there are {actions} actions")
        return self

    @property
    def system(self) -> str | None:
        """The system message that the chat begins with, None without one."""
        first = next(iter(self.messages), None)
        return first.content if first is not None and first.role == "system" else None

    @property
    def actions(self) -> tuple[str, ...]:
        """The assistant's replies, in order."""
        return tuple(row.content for row in self.messages if row.role == "assistant")

    def to_steps(self) -> tuple[Step, ...]:
        """Actions with their observations; the last one has the outcome reward.

        Raises:
            RecordError: the messages do not end with the last action's observation, or
                actions and observations do not take turns.
        """
        messages = self.messages[1:] if self.system is not None else self.messages
        turns = messages[1:]
        roles = [row.role for row in messages]
        if roles != ["user", *["assistant", "user"] * self.steps]:
            raise RecordError(
                f"the trajectory of {self.task_id} does not alternate between observations "
                f"and actions (its roles are {', '.join(roles)}); collect it again"
            )
        return tuple(
            Step(
                action.content,
                observation.content,
                reward=self.outcome_reward if number == self.steps else 0.0,
                terminated=self.terminated and number == self.steps,
            )
            for number, (action, observation) in enumerate(
                zip(turns[::2], turns[1::2], strict=True), start=1
            )
        )


class NodeRow(_Row):
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
    reward: FiniteFloat = 0.0
    terminated: bool = False
    valid: bool = True
    source: NonEmpty

    @classmethod
    def from_node(cls, node: Node) -> Self:
        """The row of a node."""
        return cls(
            id=node.id,
            parent=node.parent,
            depth=node.depth,
            action=node.step.action,
            observation=node.step.observation,
            reward=node.step.reward,
            terminated=node.step.terminated,
            valid=node.step.valid,
            source=node.source,
        )

    def to_node(self) -> Node:
        """The node of this row."""
        step = Step(self.action, self.observation, self.reward, self.terminated, self.valid)
        return Node(self.id, self.parent, self.depth, step, self.source)


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

    def to_tree(self) -> Tree:
        """The tree of this row."""
        return tree_of(self.first_observation, [node.to_node() for node in self.nodes])


class LabelRow(TaskRow):
    """One root-to-leaf path of a labelled tree: `label` writes it, `train-qnet` reads it.

    The paths of a tree overlap. A node's label stands in the first path through it and is null in
    the later ones, so that each node counts once in the loss. Nodes of the same task with the same
    parent id are siblings: candidates in one state.

    Attributes:
        target: method by which the labels were computed.
        messages: the first observation, then actions and observations in turn, up to
            the leaf's action.
        q_values: one per assistant message; null where an earlier path has the label.
        node_ids: one per assistant message.
        parent_ids: one per assistant message, 0 for the root.
    """

    version: Literal[1] = 1
    target: Target
    messages: tuple[MessageRow, ...]
    q_values: tuple[FiniteFloat | None, ...]
    node_ids: tuple[Annotated[int, Field(ge=1)], ...]
    parent_ids: tuple[NonNegativeInt, ...]

    @model_validator(mode="after")
    def _one_label_per_action(self) -> Self:
        actions = sum(row.role == "assistant" for row in self.messages)
        lengths = {len(self.q_values), len(self.node_ids), len(self.parent_ids)}
        if lengths != {actions}:
            raise ValueError(
                f"{actions} assistant messages need as many q_values, node_ids and "
                f"parent_ids, got {len(self.q_values)}, {len(self.node_ids)} and "
                f"{len(self.parent_ids)}"
            )
        return self

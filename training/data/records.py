"""Versioned rows that flow between jobs, one JSON object per line.

    collect, import ─▶ TrajectoryRow ─▶ sft
    explore, import ─▶ TreeRow ─▶ label ─▶ LabelRow ─▶ train-qnet

`TreeRow` is in `qguide.qnet.records`, because the server writes it too. A row that does not match
its type is refused, never repaired. The version is raised whenever an older reader would misread a
row.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated, Literal, Self

from pydantic import Field, FiniteFloat, NonNegativeInt, StringConstraints, model_validator

from qguide.qnet.errors import RecordError
from qguide.qnet.records import DrawnRow, NodeRow, NonEmpty, Reward, TaskRow, TreeRow
from qguide.qnet.records import MessageRow as MessageRow
from qguide.qnet.records import messages_of as messages_of
from qguide.qnet.records import rows_of as rows_of
from qguide.qnet.types import History, Message
from qguide.training.algorithms.labelling import Target
from qguide.training.algorithms.tree import EXPERT as EXPERT
from qguide.training.algorithms.tree import Node, Tree, tree_of
from qguide.training.trajectory import (
    Drawn,
    Step,
    observation_message,
    observation_text,
    text_reply,
)


class TrajectoryRow(TaskRow):
    """One played episode: `collect` writes it; `sft` and `explore` read it.

    Attributes:
        messages: the system message if the environment has one, the first observation, then
            actions and observations alternating, up to the observation after the last action.
        outcome_reward: reward at the end, whether the environment or a step limit ended it.
        terminated: False if a step limit cut the episode off.
        steps: number of actions taken.
        completion_tokens: tokens generated for the actions; 0 for an expert.
        source: "expert" or the policy's name.
        seed: sampling seed; None if nothing was sampled.
        mistakes: indices of the actions that SFT must not imitate.
        drawn: for each action the different candidates that the policy drew before it, none where
            they are unknown; empty if all are.
    """

    version: Literal[1] = 1
    messages: tuple[MessageRow, ...]
    outcome_reward: Reward
    terminated: bool
    steps: NonNegativeInt
    completion_tokens: NonNegativeInt = 0
    source: NonEmpty
    seed: int | None = None
    mistakes: tuple[NonNegativeInt, ...] = ()
    drawn: tuple[tuple[DrawnRow, ...], ...] = Field(default=(), exclude_if=lambda drawn: not drawn)

    @model_validator(mode="after")
    def _steps_are_the_actions(self) -> Self:
        if (actions := len(self.actions)) != self.steps:
            raise ValueError(f"steps is {self.steps}, but the messages hold {actions} actions")
        if any(number >= actions for number in self.mistakes):
            raise ValueError(f"mistakes are {self.mistakes}, but there are {actions} actions")
        if self.drawn and len(self.drawn) != actions:
            raise ValueError(f"drawn has {len(self.drawn)} steps, but there are {actions} actions")
        return self

    @property
    def system(self) -> str | None:
        """The system message at the start of the chat, or None."""
        first = next(iter(self.messages), None)
        return first.content if first is not None and first.role == "system" else None

    @property
    def actions(self) -> tuple[str, ...]:
        """The assistant's replies, in order."""
        return tuple(row.content for row in self.messages if row.role == "assistant")

    def to_steps(self) -> tuple[Step, ...]:
        """Actions with their observations; the last step has the outcome reward.

        Raises:
            RecordError: the messages do not alternate between actions and observations, or do not
                end with an observation.
        """
        messages = self.messages[1:] if self.system is not None else self.messages
        turns = messages[1:]
        starts = [i for i, row in enumerate(turns) if row.role == "assistant"]
        ends = [*starts[1:], len(turns)]
        roles = [row.role for row in messages]
        acts_first = roles[:1] == ["user"] and roles[1:2] in ([], ["assistant"])
        spans = list(zip(starts, ends, strict=False))
        drawn = self.drawn or [()] * self.steps
        if not acts_first or any(end == start + 1 for start, end in spans):
            raise RecordError(
                f"the trajectory of {self.task_id} does not alternate between observations "
                f"and actions (its roles are {', '.join(roles)}); collect it again"
            )
        return tuple(
            replace(
                Step.of_messages(
                    turns[start].to_message(),
                    messages_of(turns[start + 1 : end]),
                    reward=self.outcome_reward if number == self.steps else 0.0,
                    terminated=self.terminated and number == self.steps,
                ),
                drawn=drawn_from_rows(drawn[number - 1]),
            )
            for number, (start, end) in enumerate(spans, start=1)
        )


def drawn_rows(drawn: Sequence[Drawn]) -> tuple[DrawnRow, ...]:
    """The candidates of a step as rows."""
    return tuple(
        DrawnRow(
            action=one.message.text,
            count=one.count,
            greedy=one.greedy,
            propensity=one.propensity,
            reply=MessageRow.from_message(one.message) if one.message.tool_calls else None,
        )
        for one in drawn
    )


def drawn_from_rows(rows: Sequence[DrawnRow]) -> tuple[Drawn, ...]:
    """The candidates of a step."""
    return tuple(
        Drawn(
            text_reply(row.action) if row.reply is None else row.reply.to_message(),
            row.count,
            row.greedy,
            row.propensity,
        )
        for row in rows
    )


def drawn_of_steps(steps: Sequence[Step]) -> tuple[tuple[DrawnRow, ...], ...]:
    """The candidates of each step as `TrajectoryRow` has them."""
    return tuple(drawn_rows(s.drawn) for s in steps) if any(s.drawn for s in steps) else ()


def node_row(node: Node) -> NodeRow:
    """A node as a row."""
    return NodeRow(
        id=node.id,
        parent=node.parent,
        depth=node.depth,
        action=node.step.action,
        observation=node.step.observation,
        reward=node.step.reward,
        terminated=node.step.terminated,
        valid=node.step.valid,
        source=node.source,
        reply=None if node.step.reply is None else MessageRow.from_message(node.step.reply),
        observed=None if node.step.observed is None else rows_of(node.step.observed),
        drawn=drawn_rows(node.step.drawn),
    )


def step_from_row(row: NodeRow) -> Step:
    """A node's action and its effect."""
    return Step(
        row.action,
        row.observation,
        row.reward,
        row.terminated,
        row.valid,
        reply=None if row.reply is None else row.reply.to_message(),
        observed=None if row.observed is None else messages_of(row.observed),
        drawn=drawn_from_rows(row.drawn),
    )


def tree_from_row(row: TreeRow) -> Tree:
    """A row as a tree."""
    nodes = [
        Node(node.id, node.parent, node.depth, step_from_row(node), node.source)
        for node in row.nodes
    ]
    return tree_of(row.first_observation, nodes, opening=messages_of(row.opening))


class SearchRow(TreeRow):
    """An exploration tree with the statistics of the search that grew it (StepQ algorithm 1).

    `explore` writes it where it searches, and a `TreeRow` where it expands; `label` and `pairs`
    read both.

    Attributes:
        visit_counts: of each node; empty for a tree that was not searched.
        values: mean outcome of each node's visits, None for a node without any.
    """

    visit_counts: tuple[NonNegativeInt, ...] = Field(default=(), exclude_if=lambda n: not n)
    values: tuple[FiniteFloat | None, ...] = Field(default=(), exclude_if=lambda v: not v)

    @model_validator(mode="after")
    def _one_statistic_per_node(self) -> Self:
        if not self.visit_counts and not self.values:
            return self
        if not len(self.visit_counts) == len(self.values) == len(self.nodes):
            raise ValueError(
                f"{len(self.nodes)} nodes need as many visit_counts and values, got "
                f"{len(self.visit_counts)} and {len(self.values)}"
            )
        for number, (count, value) in enumerate(zip(self.visit_counts, self.values, strict=True)):
            if (count == 0) != (value is None):
                raise ValueError(f"node {number + 1} has {count} visits and the value {value}")
        return self

    @property
    def q_values(self) -> dict[int, float]:
        """Value of each visited node, by its id."""
        return {i: value for i, value in enumerate(self.values, start=1) if value is not None}


OwnTarget = Annotated[str, StringConstraints(pattern=r"^\w+(\.\w+)*:\w+$")]
"""The import path of a function that takes a `Tree` and gives labels by node id."""


class LabelRow(TaskRow):
    """One root-to-leaf path of a labelled tree: `label` writes it, `train-qnet` reads it.

    The paths of a tree overlap. A node's label is in the first path through it and null in the
    later ones, so that each node counts once in the loss. Nodes of the same task with the same
    parent id are siblings, that is, candidates in one state.

    Attributes:
        target: method by which the labels were computed.
        messages: the first observation, then actions and observations alternating, up to the
            leaf's action.
        last_observation: the observation after the leaf's action; null in rows of earlier versions,
            which cannot train a Q model that reads after observations.
        last_observed: the same as messages, if they are not one user message of that text.
        q_values: one per assistant message; null if an earlier path has the label.
        node_ids: one per assistant message.
        parent_ids: one per assistant message, 0 for the root.
    """

    version: Literal[1] = 1
    target: Target | OwnTarget
    messages: tuple[MessageRow, ...]
    last_observation: str | None = None
    last_observed: tuple[MessageRow, ...] | None = Field(
        default=None, exclude_if=lambda rows: rows is None
    )
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

    @property
    def after_leaf(self) -> History | None:
        """Observation after the leaf's action, as messages; None in rows that do not hold it."""
        if self.last_observed is not None:
            return messages_of(self.last_observed)
        if self.last_observation is None:
            return None
        return (observation_message(self.last_observation),)


def after_leaf_fields(observed: Sequence[Message]) -> dict[str, object]:
    """The fields of a `LabelRow` for what was observed after its leaf's action."""
    text = observation_text(observed)
    plain = tuple(observed) == (observation_message(text),)
    return {
        "last_observation": text,
        "last_observed": None if plain else rows_of(observed),
    }

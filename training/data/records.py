"""Versioned rows that flow between jobs, one JSON object per line.

    collect, import ─▶ TrajectoryRow ─▶ sft
    explore, import ─▶ TreeRow ─▶ label ─▶ TreeRow with labels ─▶ train-qnet
    groups, rro ─▶ TreeRow with roll-outs ─▶ train-qnet

`TreeRow` is in `qguide.qnet.records`, because the server writes it too. A row that does not match
its type is refused, never repaired. The version is raised whenever an older reader would misread a
row.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, Self

from pydantic import Field, NonNegativeInt, model_validator

from qguide.qnet.errors import RecordError
from qguide.qnet.records import JUDGED, DrawnRow, NodeRow, NonEmpty, Reward, TaskRow, TreeRow
from qguide.qnet.records import MessageRow as MessageRow
from qguide.qnet.records import messages_of as messages_of
from qguide.qnet.records import rows_of as rows_of
from qguide.training.algorithms.tree import EXPERT as EXPERT
from qguide.training.algorithms.tree import Node, Tree, tree_of
from qguide.training.data.runs import read_rows
from qguide.training.trajectory import Drawn, Step, text_reply


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
        rewards: for each action the outcome if the episode had ended after it; empty if unknown.
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
    rewards: tuple[Reward, ...] = Field(default=(), exclude_if=lambda rewards: not rewards)

    @model_validator(mode="after")
    def _steps_are_the_actions(self) -> Self:
        if (actions := len(self.actions)) != self.steps:
            raise ValueError(f"steps is {self.steps}, but the messages hold {actions} actions")
        if any(number >= actions for number in self.mistakes):
            raise ValueError(f"mistakes are {self.mistakes}, but there are {actions} actions")
        if self.drawn and len(self.drawn) != actions:
            raise ValueError(f"drawn has {len(self.drawn)} steps, but there are {actions} actions")
        if self.rewards and len(self.rewards) != actions:
            raise ValueError(
                f"rewards has {len(self.rewards)} steps, but there are {actions} actions"
            )
        return self

    @property
    def system(self) -> str | None:
        """The system message at the start of the chat, or None."""
        first = next(iter(self.messages), None)
        return first.content if first is not None and first.role == "system" else None

    @property
    def first_observation(self) -> str:
        """The first message after the system message."""
        return self.messages[0 if self.system is None else 1].content

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


def rewards_of_steps(steps: Sequence[Step]) -> tuple[float, ...]:
    """The rewards as `TrajectoryRow` has them; none where only the last step has one."""
    return tuple(step.reward for step in steps) if any(s.reward for s in steps[:-1]) else ()


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
        tried=node.step.tried,
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
        tried=row.tried,
        drawn=drawn_from_rows(row.drawn),
    )


def tree_row(
    tree: Tree,
    task: TaskRow,
    *,
    draws: int = 0,
    misses: int = 0,
    completion_tokens: int = 0,
) -> TreeRow:
    """A tree as a row of its task."""
    return TreeRow(
        task_id=task.task_id,
        kind=task.kind,
        environment=task.environment,
        first_observation=tree.first_observation,
        system=tree.system,
        opening=rows_of(tree.opening),
        nodes=tuple(map(node_row, tree.nodes)),
        values={
            name: tuple(column.get(node.id) for node in tree.nodes)
            for name, column in tree.values.items()
        },
        draws=draws,
        misses=misses,
        completion_tokens=completion_tokens,
    )


def tree_from_row(row: TreeRow) -> Tree:
    """A row as a tree, the candidates that nobody took included."""
    nodes = [
        Node(node.id, node.parent, node.depth, step_from_row(node), node.source)
        for node in row.nodes
    ]
    return tree_of(
        row.first_observation,
        nodes,
        opening=messages_of(row.opening),
        system=row.system,
        values={name: _known(column) for name, column in row.values.items()},
    )


@dataclass(frozen=True, slots=True)
class LabelledTree:
    """A tree with the labels that a Q model learns.

    Attributes:
        task_id: no other tree has it.
        target: method by which the labels were computed, and name of their column.
    """

    task_id: str
    tree: Tree
    target: str

    @property
    def labels(self) -> Mapping[int, float]:
        """The labels by node id."""
        return self.tree.values[self.target]


def labelled_tree(row: TreeRow) -> LabelledTree:
    """A tree as `label` wrote it.

    Raises:
        RecordError: it has no column of labels, or several.
    """
    targets = [name for name in row.values if not name.startswith(JUDGED)]
    if len(targets) != 1:
        raise RecordError(
            f"the tree of {row.task_id} has {len(targets)} columns of labels, and a tree with "
            "labels has one; run `qguide label`"
        )
    return LabelledTree(row.task_id, tree_from_row(row), targets[0])


def _known(column: Sequence[float | None]) -> dict[int, float]:
    return {node_id: value for node_id, value in enumerate(column, 1) if value is not None}


def best_trajectories(folders: Sequence[Path]) -> dict[str, TrajectoryRow]:
    """Each task's trajectory with the highest outcome; ties go to the first.

    Args:
        folders: run folders of `collect`, or rows files.
    """
    best: dict[str, TrajectoryRow] = {}
    for folder in folders:
        for row in read_rows(folder, TrajectoryRow):
            known = best.get(row.task_id)
            if known is None or row.outcome_reward > known.outcome_reward:
                best[row.task_id] = row
    return best

"""Versioned rows that flow between jobs, one JSON object per line.

    collect, import ─▶ TreeRow of one path ─▶ sft
    explore, import ─▶ TreeRow ─▶ label ─▶ TreeRow with labels ─▶ train-qnet
    groups, rro ─▶ TreeRow with roll-outs ─▶ train-qnet

`TreeRow` is in `qguide.qnet.records`, because the server writes it too. A row that does not match
its type is refused, never repaired. The version is raised whenever an older reader would misread a
row.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import TypeVar

from qguide.qnet.errors import RecordError
from qguide.qnet.records import EARNED, JUDGED, DrawnRow, MessageRow, NodeRow, TaskRow, TreeRow, messages_of, rows_of
from qguide.training.algorithms.tree import Node, Tree, tree_of
from qguide.training.trajectory import Drawn, Step, text_reply

T = TypeVar("T")


def recorded_once(found: Iterable[T], episode_of: Callable[[T], str] = attrgetter("episode")) -> Iterator[T]:
    """All but what is of a served episode that was read before: a killed server may record one again."""
    read = set[str]()
    for one in found:
        if (episode := episode_of(one)) not in read:
            yield one
        read |= {episode} - {""}


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
        mistake=node.mistake,
        count=node.count,
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


def tree_row(tree: Tree, task: TaskRow, *, draws: int = 0, misses: int = 0, completion_tokens: int = 0) -> TreeRow:
    """A tree as a row of its task."""
    return TreeRow(
        task_id=task.task_id,
        kind=task.kind,
        environment=task.environment,
        first_observation=tree.first_observation,
        system=tree.system,
        opening=rows_of(tree.opening),
        nodes=tuple(map(node_row, tree.nodes)),
        values={name: tuple(column.get(node.id) for node in tree.nodes) for name, column in tree.values.items()},
        draws=draws,
        misses=misses,
        completion_tokens=completion_tokens,
    )


def tree_from_row(row: TreeRow) -> Tree:
    """A row as a tree, the candidates that nobody took included."""
    nodes = [
        Node(node.id, node.parent, node.depth, step_from_row(node), node.source, node.mistake, node.count)
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
    """A tree as `label` wrote it."""
    targets = [name for name in row.values if name != EARNED and not name.startswith(JUDGED)]
    if len(targets) != 1:
        raise RecordError(
            f"the tree of {row.task_id} has {len(targets)} columns of labels, and a tree with "
            "labels has one; run `qguide label`"
        )
    return LabelledTree(row.task_id, tree_from_row(row), targets[0])


def _known(column: Sequence[float | None]) -> dict[int, float]:
    return {node_id: value for node_id, value in enumerate(column, 1) if value is not None}

"""Rows are validated, and read back as they were written."""

from typing import Any

import pytest
from pydantic import ValidationError

from qguide.qnet.errors import RecordError
from qguide.qnet.records import EARNED, NodeRow, TreeRow, messages_of, rows_of
from qguide.qnet.types import Message
from qguide.training.algorithms.tree import without_untried
from qguide.training.data.records import labelled_tree, node_row, tree_from_row

HISTORY = (
    Message("user", "Find the mug."),
    Message("assistant", "Action: look"),
    Message("user", "A mug."),
    Message("assistant", "Action: take mug"),
    Message("user", "You won!"),
)
TASK: dict[str, Any] = {"task_id": "mug-1", "kind": "find", "environment": "kitchen"}


def node(node_id: int, parent: int, depth: int) -> NodeRow:
    return NodeRow(id=node_id, parent=parent, depth=depth, action="a", observation="o", source="policy")


def test_messages_come_back_as_they_went() -> None:
    assert messages_of(rows_of(HISTORY)) == HISTORY


def test_a_tree_comes_back_from_its_row() -> None:
    row = TreeRow(
        **TASK, first_observation="Find the mug.", nodes=(node(1, 0, 1), node(2, 1, 2), node(3, 0, 1)), draws=2
    )
    tree = tree_from_row(row)
    assert tree.children == ((1, 3), (2,), (), ())
    assert tuple(node_row(each) for each in tree.nodes) == row.nodes


@pytest.mark.parametrize(
    ("nodes", "complaint"),
    [
        ((node(2, 0, 1),), "node 1 .*id 2"),
        ((node(1, 2, 1), node(2, 0, 1)), "node 1 .*parent 2"),
        ((node(1, 0, 2),), "depth 2"),
    ],
)
def test_nodes_that_form_no_tree_are_refused(nodes: tuple[NodeRow, ...], complaint: str) -> None:
    with pytest.raises(ValidationError, match=complaint):
        TreeRow(**TASK, first_observation="x", nodes=nodes, draws=1)


def test_a_column_has_a_value_for_each_node() -> None:
    fields = {"first_observation": "x", "nodes": (node(1, 0, 1), node(2, 0, 1)), "draws": 1}
    row = TreeRow(**TASK, **fields, values={"visits": (3, None)})
    assert tree_from_row(row).values == {"visits": {1: 3.0}}
    with pytest.raises(ValidationError, match=r"'mcts' .* 1 values .* 2 nodes"):
        TreeRow(**TASK, **fields, values={"mcts": (0.5,)})


def test_nothing_follows_a_candidate_that_nobody_took() -> None:
    untried = node(1, 0, 1).model_copy(update={"tried": False})
    row = TreeRow(**TASK, first_observation="x", nodes=(untried, node(2, 0, 1)), draws=1)
    assert [each.id for each in row.tried] == [2]
    assert [each.id for each in without_untried(tree_from_row(row)).nodes] == [1]
    with pytest.raises(ValidationError, match=r"node 2 .*tried"):
        TreeRow(**TASK, first_observation="x", nodes=(untried, node(2, 1, 2)), draws=1)


def test_a_tree_without_labels_trains_nothing() -> None:
    row = TreeRow(**TASK, first_observation="x", nodes=(node(1, 0, 1),), draws=1)
    judged = row.model_copy(update={"values": {"judge:j@1": (0.5,)}})
    earning = row.model_copy(update={"values": {EARNED: (0.5,)}})
    for unlabelled in (row, judged, earning):
        with pytest.raises(RecordError, match=r"mug-1 .* 0 columns .*`qguide label`"):
            labelled_tree(unlabelled)

"""Rows are validated, and read back as they were written."""

from typing import Any

import pytest
from pydantic import ValidationError

from qguide.qnet.errors import RecordError
from qguide.qnet.records import NodeRow, TreeRow
from qguide.qnet.types import Message
from qguide.training.data.records import (
    EXPERT,
    LabelRow,
    MessageRow,
    SearchRow,
    TrajectoryRow,
    drawn_rows,
    messages_of,
    node_row,
    rows_of,
    tree_from_row,
)

HISTORY = (
    Message("user", "Find the mug."),
    Message("assistant", "Action: look"),
    Message("user", "A mug."),
    Message("assistant", "Action: take mug"),
    Message("user", "You won!"),
)
TASK: dict[str, Any] = {"task_id": "mug-1", "kind": "find", "environment": "kitchen"}


def trajectory(**changes: Any) -> TrajectoryRow:
    values: dict[str, Any] = {
        **TASK,
        "messages": rows_of(HISTORY),
        "outcome_reward": 1.0,
        "terminated": True,
        "steps": 2,
        "source": EXPERT,
    }
    return TrajectoryRow.model_validate(values | changes)


def node(node_id: int, parent: int, depth: int) -> NodeRow:
    return NodeRow(
        id=node_id, parent=parent, depth=depth, action="a", observation="o", source="policy"
    )


def test_messages_come_back_as_they_went() -> None:
    assert messages_of(rows_of(HISTORY)) == HISTORY


def test_a_trajectory_comes_back_from_its_line() -> None:
    row = trajectory(seed=7)
    assert TrajectoryRow.model_validate_json(row.model_dump_json()) == row


def test_the_outcome_stands_on_the_last_step() -> None:
    steps = trajectory().to_steps()
    assert [step.action for step in steps] == ["Action: look", "Action: take mug"]
    assert [step.observation for step in steps] == ["A mug.", "You won!"]
    assert [step.reward for step in steps] == [0.0, 1.0]
    assert [step.terminated for step in steps] == [False, True]


def test_steps_must_be_the_number_of_actions() -> None:
    with pytest.raises(ValidationError, match="steps is 3"):
        trajectory(steps=3)


def test_a_trajectory_without_its_last_observation_has_no_steps() -> None:
    with pytest.raises(RecordError, match="mug-1"):
        trajectory(messages=rows_of(HISTORY[:-1])).to_steps()


@pytest.mark.parametrize("change", [{"version": 2}, {"reward": 1.0}, {"outcome_reward": "nan"}])
def test_unknown_versions_fields_and_numbers_are_refused(change: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        trajectory(**change)


def test_a_tree_comes_back_from_its_row() -> None:
    row = TreeRow(
        **TASK,
        first_observation="Find the mug.",
        nodes=(node(1, 0, 1), node(2, 1, 2), node(3, 0, 1)),
        draws=2,
    )
    tree = tree_from_row(row)
    assert tree.children == ((1, 3), (2,), (), ())
    assert tuple(node_row(each) for each in tree.nodes) == row.nodes


@pytest.mark.parametrize(
    ("nodes", "complaint"),
    [
        ((node(2, 0, 1),), "has the id 2"),
        ((node(1, 2, 1), node(2, 0, 1)), "before its parent"),
        ((node(1, 0, 2),), "depth 2"),
    ],
)
def test_nodes_that_form_no_tree_are_refused(nodes: tuple[NodeRow, ...], complaint: str) -> None:
    with pytest.raises(ValidationError, match=complaint):
        TreeRow(**TASK, first_observation="x", nodes=nodes, draws=1)


def test_a_label_row_needs_one_label_per_action() -> None:
    with pytest.raises(ValidationError, match="2 assistant messages"):
        LabelRow(
            **TASK,
            target="q",
            messages=tuple(MessageRow.from_message(message) for message in HISTORY[:-1]),
            q_values=(0.9,),
            node_ids=(1, 2),
            parent_ids=(0, 1),
        )


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"visit_counts": (1,), "values": ()}, "1 nodes need as many visit_counts and values"),
        ({"visit_counts": (0,), "values": (0.5,)}, "node 1 has 0 visits and the value 0.5"),
        ({"visit_counts": (2,), "values": (None,)}, "node 1 has 2 visits and the value None"),
    ],
)
def test_a_search_counts_every_node_or_none(changes: dict[str, Any], said: str) -> None:
    node = NodeRow(id=1, parent=0, depth=1, action="a", observation="b", source="policy")
    fields = {"task_id": "t", "kind": "k", "environment": "e", "first_observation": "start"}
    plain = TreeRow.model_validate(fields | {"nodes": (node,), "draws": 1})
    assert SearchRow(**dict(plain)).model_dump_json() == plain.model_dump_json()
    with pytest.raises(ValidationError, match=said):
        SearchRow(**dict(plain), **changes)


def test_what_was_drawn_comes_back_with_its_steps() -> None:
    drawn = [[{"action": "Action: look", "count": 3, "greedy": True}], []]
    row = trajectory(drawn=drawn)
    first, second = row.to_steps()
    assert [(d.message.text, d.count, d.greedy) for d in first.drawn] == [("Action: look", 3, True)]
    assert second.drawn == ()
    assert [drawn_rows(step.drawn) for step in row.to_steps()] == [*row.drawn]


def test_draws_of_a_part_of_the_steps_are_refused() -> None:
    with pytest.raises(ValidationError, match="drawn has 1 steps, but there are 2 actions"):
        trajectory(drawn=[[{"action": "Action: look", "count": 3}]])

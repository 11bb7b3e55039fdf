"""Rows are validated, and read back as they were written."""

from typing import Any

import pytest
from pydantic import ValidationError

from qguide.qnet.errors import RecordError
from qguide.qnet.records import NodeRow, TreeRow
from qguide.qnet.types import Message
from qguide.training.algorithms.tree import without_untried
from qguide.training.data.records import (
    EXPERT,
    TrajectoryRow,
    drawn_rows,
    labelled_tree,
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


def test_a_column_has_a_value_for_each_node() -> None:
    fields = {"first_observation": "x", "nodes": (node(1, 0, 1), node(2, 0, 1)), "draws": 1}
    row = TreeRow(**TASK, **fields, values={"visits": (3, None)})
    assert tree_from_row(row).values == {"visits": {1: 3.0}}
    with pytest.raises(ValidationError, match="'mcts' has 1 values for 2 nodes"):
        TreeRow(**TASK, **fields, values={"mcts": (0.5,)})


def test_nothing_follows_a_candidate_that_nobody_took() -> None:
    untried = node(1, 0, 1).model_copy(update={"tried": False})
    row = TreeRow(**TASK, first_observation="x", nodes=(untried, node(2, 0, 1)), draws=1)
    assert [each.id for each in row.tried] == [2]
    assert [each.id for each in without_untried(tree_from_row(row)).nodes] == [1]
    with pytest.raises(ValidationError, match="node 2 follows a candidate that was not tried"):
        TreeRow(**TASK, first_observation="x", nodes=(untried, node(2, 1, 2)), draws=1)


def test_a_tree_without_labels_trains_nothing() -> None:
    row = TreeRow(**TASK, first_observation="x", nodes=(node(1, 0, 1),), draws=1)
    judged = row.model_copy(update={"values": {"judge:j@1": (0.5,)}})
    for unlabelled in (row, judged):
        with pytest.raises(RecordError, match="0 columns of labels"):
            labelled_tree(unlabelled)


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


def test_rewards_of_a_part_of_the_steps_are_refused() -> None:
    assert trajectory(rewards=[0.5, 1.0]).rewards == (0.5, 1.0)
    assert "rewards" not in trajectory().model_dump()
    with pytest.raises(ValidationError, match="rewards has 1 steps, but there are 2 actions"):
        trajectory(rewards=[0.5])

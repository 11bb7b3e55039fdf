"""Decision groups: the state of each decision, and trees that hold none."""

from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from qguide.qnet.errors import RecordError
from qguide.qnet.records import TreeRow
from qguide.qnet.types import Message
from qguide.training.data.decision_groups import GroupDecision, choices_of, decisions_of, read_groups
from qguide.training.data.runs import JsonlWriter
from tests.support.decision_groups import candidate, groups_row

WAIT = candidate("Action: wait", observation="You wait.", valid=False)
LOOK = candidate("Action: look", observation="You look.", count=3)
TAKE = candidate("Action: take mug", reward=1.0, terminated=True)
FIRST, SECOND = GroupDecision((WAIT, LOOK), chosen=1, greedy=0), GroupDecision((TAKE,), chosen=0)
FIND = Message("user", "Find the mug.")


def groups(*decisions: GroupDecision, **changes: Any) -> TreeRow:
    return groups_row(*(decisions or (FIRST, SECOND)), first_observation=FIND.content, **changes)


def test_a_row_comes_back_from_its_line() -> None:
    assert TreeRow.model_validate_json(groups().model_dump_json()) == groups()


def test_a_state_is_the_chat_that_the_taken_actions_led_to() -> None:
    first, second = decisions_of(groups())
    assert (first.history, first.chosen, first.greedy) == ((FIND,), 1, 0)
    assert [node.action for node in first.candidates] == [WAIT.action, LOOK.action]
    look = Message("assistant", "Action: look"), Message("user", "You look.")
    assert second.history == (FIND, *look)
    assert (second.taken.action, second.greedy, second.after_noop) == (TAKE.action, None, False)
    assert [d.taken.action for d in choices_of(groups())] == [LOOK.action]


def test_the_candidates_of_a_state_stand_together_behind_the_taken_one_before() -> None:
    places = [(node.id, node.parent, node.depth, node.taken) for node in groups().nodes]
    assert places == [(1, 0, 1, False), (2, 0, 1, True), (3, 2, 2, True)]


def test_a_state_after_an_action_without_effect_is_known_as_such() -> None:
    waited = GroupDecision((WAIT, LOOK), chosen=0)
    assert [d.after_noop for d in choices_of(groups(waited, FIRST))] == [False, True]


def test_a_system_message_comes_before_every_state() -> None:
    system = Message("system", "You are in a kitchen.")
    made = decisions_of(groups(system=system.content))
    assert [decision.history[0] for decision in made] == [system] * 2


def test_nothing_is_taken_after_the_end() -> None:
    with pytest.raises(ValidationError, match=r"node 3 .*node 1 .*ended"):
        groups(SECOND, FIRST)


def test_two_actions_of_one_state_are_not_both_taken() -> None:
    row = groups(FIRST).model_dump()
    row["nodes"][0]["taken"] = True
    with pytest.raises(ValidationError, match=r"node 2 .*node 0, .*node 1"):
        TreeRow.model_validate(row)


@pytest.mark.parametrize(
    ("node", "changes", "complaint"),
    [
        (0, {"action": "Thought: Hm.\nAction: look"}, "'look' .*node 0 .*twice"),
        (0, {"rollouts": ()}, r"\bt .*groups, .*`qguide groups`"),
        (1, {"taken": False}, "line 1: .*node 3 .*node 2, .*node 0"),
        (2, {"taken": False}, r"\bt .*groups, .*`qguide groups`"),
    ],
)
def test_a_tree_whose_states_were_not_decided_is_refused(
    tmp_path: Path, node: int, changes: dict[str, Any], complaint: str
) -> None:
    row = groups(FIRST, GroupDecision((LOOK, WAIT), chosen=0))
    nodes = list(row.nodes)
    nodes[node] = nodes[node].model_copy(update=changes)
    with JsonlWriter(tmp_path / "rows.jsonl") as writer:
        writer.write(row.model_copy(update={"nodes": tuple(nodes)}))
    with pytest.raises((RecordError, ValidationError), match=complaint):
        list(read_groups(tmp_path))

"""Decision group rows: validation, and the state of each decision."""

from typing import Any

import pytest
from pydantic import ValidationError

from qguide.qnet.types import Message
from qguide.training.data.decision_groups import (
    CandidateRow,
    ContinuationRow,
    DecisionGroupsRow,
    DecisionRow,
)

WON = ContinuationRow(outcome_reward=1.0, steps=2, terminated=True)


def candidate(action: str, **changes: Any) -> CandidateRow:
    values: dict[str, Any] = {
        "action": f"Action: {action}",
        "count": 1,
        "observation": f"You {action}.",
        "continuations": (WON,),
    }
    return CandidateRow.model_validate(values | changes)


LOOK = candidate("look", count=3)
TAKE = candidate("take mug", reward=1.0, terminated=True)
FIRST = DecisionRow(candidates=(candidate("wait", valid=False), LOOK), chosen=1, greedy=0)
SECOND = DecisionRow(candidates=(TAKE,), chosen=0)


def groups(**changes: Any) -> DecisionGroupsRow:
    values: dict[str, Any] = {
        "task_id": "mug-1",
        "kind": "find",
        "environment": "kitchen",
        "first_observation": "Find the mug.",
        "decisions": (FIRST, SECOND),
        "source": "policy",
        "continuation": "expert",
        "seed": 3,
    }
    return DecisionGroupsRow.model_validate(values | changes)


def test_a_row_comes_back_from_its_line() -> None:
    assert DecisionGroupsRow.model_validate_json(groups().model_dump_json()) == groups()


def test_a_state_is_the_chat_that_the_taken_actions_led_to() -> None:
    first, second = groups().states()
    find = Message("user", "Find the mug.")
    assert first == ((find,), FIRST)
    look = Message("assistant", "Action: look"), Message("user", "You look.")
    assert second == ((find, *look), SECOND)


def test_a_system_message_comes_before_every_state() -> None:
    system = Message("system", "You are in a kitchen.")
    assert [history[0] for history, _ in groups(system=system.content).states()] == [system] * 2


def test_the_outcome_is_that_of_the_last_taken_action() -> None:
    assert groups().outcome_reward == 1.0
    assert groups(decisions=(FIRST,)).outcome_reward == 0.0


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"chosen": 2}, "chosen is 2"),
        ({"greedy": 2}, "greedy is 2"),
        ({"candidates": ()}, "at least 1 item"),
        ({"candidates": (LOOK, candidate("look Thought: Hm.\nAction: look"))}, "twice"),
    ],
)
def test_a_decision_that_cannot_have_been_made_is_refused(
    changes: dict[str, Any], complaint: str
) -> None:
    with pytest.raises(ValidationError, match=complaint):
        DecisionRow.model_validate({"candidates": (LOOK, TAKE), "chosen": 0} | changes)


def test_nothing_is_decided_after_the_end() -> None:
    with pytest.raises(ValidationError, match="decision 1 took an action that ended the episode"):
        groups(decisions=(SECOND, FIRST))


@pytest.mark.parametrize(
    "changes", [{"version": 2}, {"continuation": "nobody"}, {"decisions": ()}, {"reward": 1.0}]
)
def test_unknown_versions_fields_and_continuations_are_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        groups(**changes)

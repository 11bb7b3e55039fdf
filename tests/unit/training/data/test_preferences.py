"""A preference row compares two continuations of one state, or it is refused."""

from typing import Any

import pytest
from pydantic import ValidationError

from qguide.training.data.preferences import PreferenceRow


def turn(role: str, content: str) -> dict[str, str]:
    return {"role": role, "content": content}


STEP: dict[str, Any] = {
    "task_id": "t",
    "kind": "k",
    "environment": "e",
    "level": "step",
    "source": "group",
    "messages": [turn("user", "start")],
    "chosen": [turn("assistant", "Thought: so.\nAction: go")],
    "rejected": [turn("assistant", "Thought: no.\nAction: stay")],
    "chosen_value": 0.5,
    "rejected_value": 0.25,
    "depth": 0,
}


def test_a_pair_survives_its_line() -> None:
    row = PreferenceRow.model_validate(STEP)
    assert PreferenceRow.model_validate_json(row.model_dump_json()) == row
    assert row.gap == 0.25


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"rejected_value": 0.5}, r"chosen_value 0\.5 .*rejected_value 0\.5"),
        ({"rejected": [turn("assistant", "Action: go")]}, "action 'go'"),
        ({"rejected": [turn("user", "stay")]}, "rejected .*roles .*user; .*alternate"),
        ({"chosen": [turn("assistant", "a"), turn("user", "b")]}, "chosen .*observation, .*reply"),
        (
            {"chosen": [turn("assistant", "a"), turn("user", "b"), turn("assistant", "c")]},
            "level is 'step', .* 3 .*rejected 1;",
        ),
        ({"messages": []}, r"messages\n.*too_short"),
        ({"mistakes": [1]}, r"mistakes .*\(1,\), .* 1 replies"),
        ({"mistakes": [0]}, "1 replies .*mistakes, "),
    ],
)
def test_what_compares_nothing_is_refused(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(ValidationError, match=said):
        PreferenceRow.model_validate(STEP | changes)

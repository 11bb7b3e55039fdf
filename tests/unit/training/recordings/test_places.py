"""Places of values in records, with dots between nested keys."""

import pytest

from qguide.training.recordings.fields import first_at, value_at

RECORD = {
    "info": {"reward": 0.5, "runs": [{"ok": True}, {"ok": False}]},
    "info.reward": 0.25,
    "gen_ai": {"evaluation.score": 3},
    "nothing": None,
}


@pytest.mark.parametrize(
    ("place", "value"),
    [
        ("info.runs.1.ok", False),
        ("info.runs.2.ok", None),
        ("info.runs.last", None),
        ("info.runs.0", {"ok": True}),
        ("info.reward", 0.25),
        ("gen_ai.evaluation.score", 3),
        ("info.reward.deeper", None),
        ("absent", None),
        ("*.reward", 0.5),
    ],
)
def test_a_place_is_followed_through_objects_and_lists(place: str, value: object) -> None:
    assert value_at(RECORD, place) == value


def test_the_first_place_with_a_value_counts() -> None:
    assert first_at(RECORD, ("absent", "nothing", "info.runs.0.ok")) is True
    assert first_at(RECORD, ("absent",)) is None

"""Reward and task id that a record states, as the operator or its format names their places."""

import json
import math
from collections.abc import Mapping
from typing import Final

from qguide.qnet.errors import RecordError
from qguide.qnet.records import MAX_REWARD
from qguide.training.recordings.fields import Fields, value_at

_MOST_ID_CHARACTERS: Final = 1024
_JOIN: Final = "+"
"""Between places whose values are a task id together, such as `set+id`."""


def stated_reward(
    record: Mapping[str, object], fields: Fields, *, own: object, place: str, task_id: str
) -> float:
    """The reward of a record: where the operator says, else where the format has it.

    Args:
        own: what stands at the format's own place; None if nothing does.
        place: the format's own place, for errors.
    """
    value = value_at(record, fields.reward) if fields.reward else own
    if value is not None:
        if isinstance(value, bool) and not fields.reward:
            raise RecordError(
                f"{place!r} is {json.dumps(value)}; a reward is a number. If it says who "
                f"succeeded, name it: --reward-key {place}"
            )
        return to_reward(value, fields.reward or place)
    if task_id in fields.outcomes:
        return fields.outcomes[task_id]
    if fields.default_reward is not None:
        return fields.default_reward
    listed = f", and the outcomes have no task {task_id[:80]!r}" if fields.outcomes else ""
    raise RecordError(
        f"it has no {fields.reward or place!r}{listed}; name another field, or a default reward"
    )


def to_reward(value: object, field: str) -> float:
    """A stated reward as a number; true is 1 and false 0."""
    if not isinstance(value, int | float):
        raise RecordError(f"{field!r} is of type {type(value).__name__}; a reward is a number")
    if not -MAX_REWARD <= value <= MAX_REWARD:  # false for nan too
        raise RecordError(f"{field!r} is not between {-MAX_REWARD:g} and {MAX_REWARD:g}")
    return float(value)


def stated_task(record: Mapping[str, object], *places: str) -> str:
    """The task id at the first of these places that has one, as text; "" without any."""
    for place in places:
        value = value_at(record, place)
        if value is None and _JOIN in place:
            parts = [value_at(record, part) for part in place.split(_JOIN)]
            value = None if None in parts else "/".join(to_task_id(part, place) for part in parts)
        if value is None or value == "":
            continue
        return to_task_id(value, place)
    return ""


def to_task_id(value: object, field: str) -> str:
    """A stated task id as text."""
    if isinstance(value, float) and math.isfinite(value) and value.is_integer():
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, str | int):
        raise RecordError(f"{field!r} is of type {type(value).__name__}; a task id is a text")
    if len(text := str(value)) > _MOST_ID_CHARACTERS:
        raise RecordError(
            f"{field!r} has {len(text):,} characters; a task id has at most {_MOST_ID_CHARACTERS:,}"
        )
    return text

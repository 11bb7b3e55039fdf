"""Places in a recording that its operator or its format names, and what is stated there."""

import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, TypeVar

from pydantic import ValidationError

from qguide.qnet.errors import ConfigError, RecordError
from qguide.qnet.records import MAX_REWARD
from qguide.training.recordings.json_stream import FIRST, read_values


@dataclass(frozen=True, slots=True)
class Fields:
    """Places of messages, reward and task id: keys of a record, or attributes of a span.

    Attributes:
        reward, task, messages: "" takes the format's own.
        default_reward: of a record without one; None refuses it.
        model: the same for the model that made an episode.
        outcomes: rewards by task id, for records without one.
        outcome: place of an id by which `outcomes` lists rewards in place of the task's.
        episodes: ids of the served episodes that are read; empty: all.
    """

    reward: str = ""
    task: str = ""
    default_reward: float | None = None
    messages: str = ""
    model: str = ""
    outcomes: Mapping[str, float] = field(default_factory=dict)
    outcome: str = ""
    episodes: frozenset[str] = frozenset()

    @property
    def tasks(self) -> tuple[str, ...]:
        """The named place of the task id, if there is one."""
        return (self.task,) if self.task else ()


Translated = TypeVar("Translated")
_OTHER_SHAPE: Final = (AttributeError, IndexError, KeyError, TypeError, ValueError)
"""Raised by a translation that meets a record of another shape than its format's."""


def flaw_of(error: ValidationError, place: str = "") -> str:
    """The first flaw that a schema found, without any text or field name of the record."""
    first = error.errors(include_input=False, include_context=False)[0]
    unknown = first["type"] == "extra_forbidden"
    names = [str(part) for part in first["loc"][: -1 if unknown else None]]
    where = ".".join([place, *names] if place else names) or "the record"
    return f"{where}: {'has an unknown field' if unknown else first['msg']}"


def translated(translate: Callable[[Any], Iterable[Translated]], record: object) -> list[Translated]:
    """All that a translation makes of a record; one of another shape is refused, without a word of its text."""
    try:
        return list(translate(record))
    except _OTHER_SHAPE as error:
        raise RecordError(f"it does not have the shape of this format ({type(error).__name__})") from error


def value_at(record: object, place: str) -> Any:
    """The value at a place; None if there is none.

    A key that itself has dots comes before nested ones, and a number is a place in a list.
    """
    if isinstance(record, Mapping):
        if place in record:
            return record[place]
        if place == FIRST or place.startswith(f"{FIRST}."):
            record = {FIRST: next(iter(record.values()), None)}
            if place == FIRST:
                return record[FIRST]
    elif isinstance(record, list):
        head, _, rest = place.partition(".")
        if not head.isdecimal() or int(head) >= len(record):
            return None
        return value_at(record[int(head)], rest) if rest else record[int(head)]
    if not isinstance(record, Mapping):
        return None
    for head, rest in _splits(place):
        if head in record and (found := value_at(record[head], rest)) is not None:
            return found
    return None


def first_at(record: object, places: Iterable[str]) -> Any:
    """The value at the first of these places that has one; None if none has."""
    for place in places:
        if (found := value_at(record, place)) is not None:
            return found
    return None


def _splits(place: str) -> Iterable[tuple[str, str]]:
    parts = place.split(".")
    for count in range(1, len(parts)):
        yield ".".join(parts[:count]), ".".join(parts[count:])


_MOST_ID_CHARACTERS: Final = 1024
_JOIN: Final = "+"
"""Between places whose values are a task id together, such as `set+id`."""


def stated_reward(record: Mapping[str, object], fields: Fields, *, own: object, place: str, task_id: str) -> float:
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
    listed_as = stated_task(record, fields.outcome) if fields.outcome else task_id
    if listed_as in fields.outcomes:
        return fields.outcomes[listed_as]
    if fields.default_reward is not None:
        return fields.default_reward
    wanted = f"{fields.outcome} {listed_as[:80]!r}" if fields.outcome else f"task {task_id[:80]!r}"
    listed = f", and the outcomes have no {wanted}" if fields.outcomes else ""
    raise RecordError(f"it has no {fields.reward or place!r}{listed}; name another field, or a default reward")


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


def require_a_task(fields: Fields, paths: Sequence[Path]) -> None:
    """Refuse the named place of a recording's task ids, at which no record has one."""
    if fields.task:
        among = f" (the first of {len(paths):,} files)" if len(paths) > 1 else ""
        raise ConfigError(
            f"no record of {paths[0]}{among} has a task id at {fields.task!r}; name another --task-key, or none: "
            "episodes with the same first messages are then of one task"
        )


def to_task_id(value: object, field: str) -> str:
    """A stated task id as text."""
    if isinstance(value, float) and math.isfinite(value) and value.is_integer():
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, str | int):
        raise RecordError(f"{field!r} is of type {type(value).__name__}; a task id is a text")
    if len(text := str(value)) > _MOST_ID_CHARACTERS:
        raise RecordError(f"{field!r} has {len(text):,} characters; a task id has at most {_MOST_ID_CHARACTERS:,}")
    return text


_SOLVED: Final = ("resolved_ids", "resolved", "solved_ids", "solved", "passed")
_FAILED: Final = ("unresolved_ids", "unresolved", "empty_patch_ids", "failed")
"""Not `error_ids` and `incomplete_ids`: what was never judged has no reward."""
_REWARDS: Final = ("reward", "score", "resolved", "success")
_INDIVIDUAL: Final = "individual"


def read_outcomes(path: Path) -> dict[str, float]:
    """Rewards by task id.

    Read are an object of rewards, such as `{"task": 1}` or `{"task": {"success": true}}`, and a
    report that lists ids, such as SWE-bench's `resolved_ids` and `unresolved_ids`.
    """
    try:
        values = list(read_values(path))
    except RecordError as error:
        raise ConfigError(str(error)) from error
    said = values[0].value if len(values) == 1 and not values[0].flaw else None
    if not isinstance(said, Mapping):
        raise ConfigError(f"{path} is no JSON object of rewards by task id; name another file")
    listed = dict.fromkeys(_ids(said, _SOLVED), 1.0)
    listed |= {task: 0.0 for task in _ids(said, _FAILED) if task not in listed}
    try:
        found = listed or dict(_each(said.get(_INDIVIDUAL, said)))
    except RecordError as error:
        raise ConfigError(f"{path}: {error}") from error
    if not found:
        raise ConfigError(f"{path} has no reward; give an object of rewards by task id")
    return found


def _ids(report: Mapping[str, object], names: Sequence[str]) -> list[str]:
    lists = [report[name] for name in names if isinstance(report.get(name), list)]
    return [str(task) for ids in lists if isinstance(ids, list) for task in ids]


def _each(rewards: object) -> list[tuple[str, float]]:
    found = []
    for task, said in rewards.items() if isinstance(rewards, Mapping) else ():
        value = first_at(said, _REWARDS) if isinstance(said, Mapping) else said
        found.append((str(task), to_reward(value, "a reward")))
    return found

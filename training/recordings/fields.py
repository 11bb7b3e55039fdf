"""Places in a recording that its operator names."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from pydantic import ValidationError

from qguide.qnet.errors import RecordError


@dataclass(frozen=True, slots=True)
class Fields:
    """Places of messages, reward and task id: keys of a record, or attributes of a span.

    Attributes:
        reward: "" takes the format's own.
        task: "" takes the format's own.
        default_reward: of a record without one; None refuses it.
        messages: "" takes the format's own.
        outcomes: rewards by task id, for records without one.
        episodes: ids of the served episodes that are read; empty: all.
    """

    reward: str = ""
    task: str = ""
    default_reward: float | None = None
    messages: str = ""
    outcomes: Mapping[str, float] = field(default_factory=dict)
    episodes: frozenset[str] = frozenset()

    @property
    def tasks(self) -> tuple[str, ...]:
        """The named place of the task id, if there is one."""
        return (self.task,) if self.task else ()


OTHER_SHAPE: Final = (AttributeError, IndexError, KeyError, TypeError, ValueError)
"""Raised by a translation that meets a record of another shape than its format's."""


def flaw_of(error: ValidationError, place: str = "") -> str:
    """The first flaw that a schema found, without any text or field name of the record."""
    first = error.errors(include_input=False, include_context=False)[0]
    unknown = first["type"] == "extra_forbidden"
    names = [str(part) for part in first["loc"][: -1 if unknown else None]]
    where = ".".join([place, *names] if place else names) or "the record"
    return f"{where}: {'has an unknown field' if unknown else first['msg']}"


def other_shape(error: Exception) -> RecordError:
    """The error that such a record is refused with; it says nothing of the record's text."""
    return RecordError(f"it does not have the shape of this format ({type(error).__name__})")


FIRST: Final = "*"
"""Stands for the first value of an object whose keys are ids."""


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

"""Places of values in a record: keys with dots between nested ones, such as `info.reward`."""

from collections.abc import Iterable, Mapping
from typing import Any, Final

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

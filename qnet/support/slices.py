"""Work in slices, where it is wanted whole, and whole work, where slices are wanted."""

from collections.abc import Callable, Generator
from typing import Any, TypeVar

from qnet.types import Slices

Result = TypeVar("Result")


def finish(work: Generator[Any, Any, Result]) -> Result:
    """The result of all slices, run one after the other."""
    try:
        while True:
            next(work)
    except StopIteration as end:
        result: Result = end.value
        return result


def in_one_slice(work: Callable[[], Result]) -> Slices[Result]:
    """Work that cannot be cut, and whose cost is known only afterwards."""
    yield {}
    return work()

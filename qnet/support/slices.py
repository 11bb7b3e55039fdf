"""Adapters between work in slices (a generator) and work in one go."""

from collections.abc import Callable, Generator
from typing import Any, TypeVar

from qguide.qnet.types import Slices

Result = TypeVar("Result")


def finish(work: Generator[Any, Any, Result]) -> Result:
    """Run all slices, and return the result."""
    try:
        while True:
            next(work)
    except StopIteration as end:
        result: Result = end.value
        return result


def in_one_slice(work: Callable[[], Result]) -> Slices[Result]:
    """Work that cannot be cut, as a single slice of unknown cost."""
    yield {}
    return work()

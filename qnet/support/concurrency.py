"""Concurrent work for one caller, and a name for what belongs together."""

import asyncio
from collections.abc import Coroutine, Sequence
from contextvars import ContextVar
from typing import Any, TypeVar

T = TypeVar("T")

_group: ContextVar[object | None] = ContextVar("work_group", default=None)


async def all_of(works: Sequence[Coroutine[Any, Any, T]]) -> list[T]:
    """Run the works concurrently; if one fails the others are cancelled."""
    token = _group.set(_group.get() or object())  # inherited by the tasks, and by theirs
    try:
        tasks = [asyncio.ensure_future(work) for work in works]
    finally:
        _group.reset(token)
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def work_group() -> object | None:
    """Identity of the outermost `all_of` around the caller; None outside.

    Works of one group stand or fall together, so none of them may wait for the failure of another.
    """
    return _group.get()

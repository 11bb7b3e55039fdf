"""Concurrent work for one caller, of which the parts can be told to belong together."""

import asyncio
from collections.abc import Coroutine, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, TypeVar

T = TypeVar("T")

_group: ContextVar[object | None] = ContextVar("work_group", default=None)


async def all_of(works: Sequence[Coroutine[Any, Any, T]], *, at_once: int | None = None) -> list[T]:
    """Run the works concurrently; if one fails the others are cancelled.

    Args:
        at_once: most that have begun and not ended; None begins all of them at once, which keeps
            everything else on the event loop waiting for their first steps.
    """
    places = asyncio.Semaphore(at_once or max(1, len(works)))

    async def in_turn(work: Coroutine[Any, Any, T]) -> T:
        async with places:
            return await work

    with one_group():  # inherited by the tasks, and by theirs
        tasks = [asyncio.ensure_future(in_turn(work)) for work in works]
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for work in works:
            work.close()  # those that never had their turn


@contextmanager
def one_group() -> Iterator[None]:
    """Within this, and in tasks that begin within, all work is of one group."""
    token = _group.set(_group.get() or object())
    try:
        yield
    finally:
        _group.reset(token)


def work_group() -> object | None:
    """Identity of the outermost `all_of` or `one_group` around the caller; None outside.

    Tasks of one group are cancelled together as soon as one fails, so none of them may wait for
    the failure of another.
    """
    return _group.get()

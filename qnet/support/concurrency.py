"""Waiting for several things at once."""

import asyncio
from collections.abc import Coroutine, Sequence
from typing import Any, TypeVar

T = TypeVar("T")


async def all_of(works: Sequence[Coroutine[Any, Any, T]]) -> list[T]:
    """The results of works that run side by side; where one fails the others are given up."""
    tasks = [asyncio.ensure_future(work) for work in works]
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

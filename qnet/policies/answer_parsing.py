"""Parsing of upstream answers without keeping the event loop's other requests waiting."""

import asyncio
import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Lock
from typing import Final, TypeVar

Parsed = TypeVar("Parsed")

_ON_LOOP_BYTES: Final = 64 * 1024
"""Up to here a hop to another thread costs more than it saves."""

_lock: Final = Lock()
_pauses = 0


async def parse(read: Callable[[bytes], Parsed], answer: bytes) -> Parsed:
    """Run `read` on the answer; on another thread if the answer is large."""
    if len(answer) <= _ON_LOOP_BYTES:
        return read(answer)
    return await asyncio.to_thread(_parse_large, read, answer)


def _parse_large(read: Callable[[bytes], Parsed], answer: bytes) -> Parsed:
    with _gc_paused():
        return read(answer)


@contextmanager
def _gc_paused() -> Iterator[None]:
    """No garbage collection in this process; pauses of several threads may overlap.

    JSON has no cycles to collect. But new lists set off collections, which visit all objects of the
    models with the interpreter's lock held: 1.8 s of the 2.1 s that an answer of 500,000 lists
    took.
    """
    global _pauses
    with _lock:
        _pauses += 1
        gc.disable()
    try:
        yield
    finally:
        with _lock:
            _pauses -= 1
            if not _pauses:
                gc.enable()

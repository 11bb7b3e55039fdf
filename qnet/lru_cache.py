"""A thread-safe LRU cache whose entries have sizes."""

from threading import Lock
from typing import Generic, TypeVar

import cachetools

Key = TypeVar("Key")
Value = TypeVar("Value")


class LRUCache(Generic[Key, Value]):
    """Values by key, least recently used out first; safe for several threads.

    Args:
        size: of everything kept, in whatever unit `put` is told.
    """

    def __init__(self, *, size: int) -> None:
        self._kept = cachetools.LRUCache[Key, tuple[Value, int]](size, getsizeof=lambda entry: entry[1])
        self._lock = Lock()

    def __len__(self) -> int:
        return len(self._kept)

    def get(self, key: Key) -> Value | None:
        """The value, if it is still there."""
        with self._lock:
            found = self._kept.get(key)
        return None if found is None else found[0]

    def put(self, key: Key, value: Value, *, size: int) -> None:
        """Keep a value; one that is larger than the whole cache is not kept."""
        if size <= self._kept.maxsize:
            with self._lock:
                self._kept[key] = (value, size)

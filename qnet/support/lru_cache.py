"""What was used most recently, as much of it as fits."""

from collections import OrderedDict
from threading import Lock
from typing import Generic, TypeVar

Key = TypeVar("Key")
Value = TypeVar("Value")


class LRUCache(Generic[Key, Value]):
    """Values by key, least recently used out first. Safe for several threads.

    Args:
        size: of everything kept, in whatever unit `put` is told.
    """

    def __init__(self, *, size: int) -> None:
        self._size = self._room = size
        self._kept: OrderedDict[Key, tuple[Value, int]] = OrderedDict()
        self._lock = Lock()

    def __len__(self) -> int:
        return len(self._kept)

    def get(self, key: Key) -> Value | None:
        """The value, if it is still there."""
        with self._lock:
            found = self._kept.get(key)
            if found is None:
                return None
            self._kept.move_to_end(key)
            return found[0]

    def put(self, key: Key, value: Value, *, size: int) -> None:
        """Keep a value; one that is larger than everything may be is not kept."""
        if size > self._size:
            return
        with self._lock:
            replaced = self._kept.pop(key, None)
            self._room += replaced[1] if replaced else 0
            self._kept[key] = (value, size)
            self._room -= size
            while self._room < 0:
                _, (_, dropped) = self._kept.popitem(last=False)
                self._room += dropped

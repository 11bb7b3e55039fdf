"""Limits of JSON from outside: its number of values before it is parsed, its nesting afterwards.

A byte of it may become a hundred in memory, one value several errors, and most of a parse holds the
interpreter's lock: 1 MB of `[1,1,1,…]` took 8 s to refuse, and 16 MiB of empty lists stopped all
other threads for 15 s.

Python's recursion ends at about a thousand levels. Serialising happens deeper in the call stack
than parsing, so JSON that could just be parsed might not be serialisable.
"""

from typing import Any, Final

from qguide.qnet.turns import paced

MOST_LEVELS = 100
_MARKS: Final = (b",", b"[", b"{")
"""Bytes before a value; at most one for each, and none only for the first."""


def marks_in(body: bytes) -> int:
    """Upper bound for the number of values; marks within texts count as well."""
    return sum(body.count(mark) for mark in _MARKS)


def has_more_values(body: bytes, most: int) -> bool:
    """True if JSON in UTF-8 has more than `most` values; its texts may hold any marks."""
    if marks_in(body) <= most:
        return False
    plain = body.replace(rb"\\", b"").replace(rb"\"", b"")
    if plain.count(b'"') > 4 * (most + 1):  # each value is at most two texts: itself and its name
        return True
    return marks_in(b"".join(plain.split(b'"')[::2])) > most


def exceeds_max_depth(value: object, most: int = MOST_LEVELS) -> bool:
    """True if lists and objects are nested more than `most` levels deep."""
    level: list[Any] = [value] if isinstance(value, dict | list) else []
    for _ in range(most):
        level = [
            part
            for one in paced(level)
            for part in (one.values() if isinstance(one, dict) else one)
            if isinstance(part, dict | list)
        ]
    return bool(level)

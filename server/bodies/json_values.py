"""Number of values in JSON, bounded before it is parsed.

A byte of JSON may become a hundred in memory, and one value several errors of validation: a
megabyte of `[1,1,1,…]` took 8 s to refuse.
"""

from typing import Final

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

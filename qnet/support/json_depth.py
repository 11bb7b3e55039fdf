"""The nesting limit of JSON that is read here and written again.

It is written deeper in the call stack than it was read, and Python's recursion ends at about a
thousand levels: JSON that could just be read could not be written any more.
"""

from typing import Any

MOST_LEVELS = 100


def exceeds_max_depth(value: object, most: int = MOST_LEVELS) -> bool:
    """True if lists and objects are nested more than `most` levels deep."""
    level: list[Any] = [value] if isinstance(value, dict | list) else []
    for _ in range(most):
        level = [
            part
            for one in level
            for part in (one.values() if isinstance(one, dict) else one)
            if isinstance(part, dict | list)
        ]
    return bool(level)

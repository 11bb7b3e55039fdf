"""The nesting limit of JSON that is parsed here and serialised again.

Python's recursion ends at about a thousand levels. Serialising happens deeper in the call stack
than parsing, so JSON that could just be parsed might not be serialisable.
"""

from typing import Any

from qguide.qnet.pace import paced

MOST_LEVELS = 100


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

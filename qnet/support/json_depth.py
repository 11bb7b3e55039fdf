"""How deep lists and objects may stand in each other in what is read here and written again.

What comes as JSON is written elsewhere, deeper in the stack than it was read, and Python's
recursion ends at about a thousand levels: what was just read could not be said any more.
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

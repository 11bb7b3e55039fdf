r"""Detection of lone surrogates, which JSON can express but UTF-8 cannot encode.

`"\ud800"` passes every JSON parser and then fails wherever it is written: to an upstream, a file,
Redis or a metric's label. So it is refused on arrival, in any field.
"""

import re
from collections.abc import Iterable
from typing import Any, Final

from qguide.server.bodies.long_bodies import Pace

# A high surrogate without a low one after it, or a low one without a high one before it; or an
# escaped backslash before a `u`, after which these patterns can be wrong.
_ESCAPED: Final = re.compile(
    rb"\\(?:\\u|u[dD](?:[89abAB][0-9a-fA-F]{2}(?!\\u[dD][c-fC-F])"
    rb"|(?<!\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD])[c-fC-F]))"
)
_RAW: Final = re.compile(rb"\xed[\xa0-\xbf]")  # UTF-8 has no such bytes; Python's JSON takes them
_WINDOW_BYTES: Final = 65_536
_LONGEST_BYTES: Final = len(rb"\ud83d\ude00")
_SHOWN_CHARACTERS: Final = 40

_Place = tuple[Any, str | int] | None
"""The place of the list or object around a value, and the value's name in it; None for the root."""


def may_hold_lone_surrogate(body: bytes, pace: Pace | None = None) -> bool:
    """True unless the bytes of JSON in UTF-8 rule it out, which saves a look at most bodies."""
    # Search for one byte first, in a hundredth of the pattern's time.
    patterns = [p for byte, p in ((b"\\", _ESCAPED), (b"\xed", _RAW)) if byte in body]
    for start in range(0, len(body) if patterns else 0, _WINDOW_BYTES):
        end = start + _WINDOW_BYTES
        found = [p.search(body, start, end + _LONGEST_BYTES) for p in patterns]
        # A match that begins behind the window is cut off, perhaps; the next window has it whole.
        if any(match and match.start() < end for match in found):
            return True
        if pace:
            pace.keep(None)
    return False


def lone_surrogate_in(value: object) -> str | None:
    """Place of the first lone surrogate in parsed JSON, as `body.messages.0.content`."""
    waiting: list[tuple[_Place, Any]] = [(None, value)]
    while waiting:
        place, value = waiting.pop()
        if isinstance(value, str):
            if not _is_whole(value):
                return _shown(place)
        elif isinstance(value, dict):
            if not all(map(_is_whole, value)):
                return f"a name in {_shown(place)}"
            waiting += _parts(place, value.items())
        elif isinstance(value, list):
            waiting += _parts(place, enumerate(value))
    return None


def _parts(around: _Place, parts: Iterable[tuple[str | int, Any]]) -> list[tuple[_Place, Any]]:
    """The parts of a list or object, the last one first, so that the first one is taken first."""
    return [((around, name), part) for name, part in reversed([*parts])]


def _shown(place: _Place) -> str:
    names: list[str] = []
    while place is not None:
        place, name = place
        names.append(str(name)[:_SHOWN_CHARACTERS])
    return ".".join(["body", *reversed(names)])


def _is_whole(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True

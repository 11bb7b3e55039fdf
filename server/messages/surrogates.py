r"""Detection of lone surrogates, which JSON can express but UTF-8 cannot encode.

`"\ud800"` passes every JSON parser and then fails wherever it is written: to an upstream, a file,
Redis or a metric's label. So it is refused on arrival, in any field.
"""

import json
import re
from json import detect_encoding
from typing import Any, Final

# A high surrogate without a low one after it, or a low one without a high one before it; or an
# escaped backslash before a `u`, after which these patterns can be wrong.
_ESCAPED: Final = re.compile(
    rb"\\(?:\\u|u[dD](?:[89abAB][0-9a-fA-F]{2}(?!\\u[dD][c-fC-F])"
    rb"|(?<!\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD])[c-fC-F]))"
)
_RAW: Final = re.compile(rb"\xed[\xa0-\xbf]")  # UTF-8 has no such bytes; Python's JSON takes them


def lone_surrogate_in(body: bytes) -> str | None:
    """Place of the first lone surrogate in a JSON body, as `body.messages.0.content`."""
    if not _may_hold_one(body):
        return None
    try:
        return _find(json.loads(body))
    except (ValueError, RecursionError):
        return None  # the schema validation refuses the body


def _may_hold_one(body: bytes) -> bool:
    """True unless the raw bytes already rule it out, which saves parsing most bodies."""
    if detect_encoding(body) not in ("utf-8", "utf-8-sig"):
        return True
    # Search for one byte first, in a hundredth of the pattern's time: this runs on the event loop.
    escaped = b"\\" in body and _ESCAPED.search(body)
    return bool(escaped or (b"\xed" in body and _RAW.search(body)))


def _find(value: object) -> str | None:
    waiting: list[tuple[str, Any]] = [("body", value)]
    while waiting:
        place, value = waiting.pop()
        if isinstance(value, str):
            if not _is_whole(value):
                return place
        elif isinstance(value, dict):
            for name in value:
                if not _is_whole(name):
                    return f"a name in {place}"
            waiting += [(f"{place}.{name}", inner) for name, inner in reversed(value.items())]
        elif isinstance(value, list):
            waiting += [(f"{place}.{i}", value[i]) for i in reversed(range(len(value)))]
    return None


def _is_whole(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True

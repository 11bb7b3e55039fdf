"""The text of a JSON list or object that does not fit into memory, read piece by piece."""

import codecs
import json
from collections.abc import Callable
from json import JSONDecoder
from typing import BinaryIO, Final, NoReturn

from qguide.qnet.errors import RecordError

MOST_BYTES: Final = 64 * 1024**2
"""Most bytes of one value."""
CHUNK: Final = 256 * 1024
_CLOSING: Final = {"[": "]", "{": "}"}
_EXPECTED: Final = {"[": "a list", "{": "an object"}
_NAMES: Final = {"[": "the list", "]": "the list", "{": "the object", "}": "the object"}

OnBytes = Callable[[int], None]
"""Told how many bytes were read."""


class JsonWindow:
    """The part of a text that is in memory, and the place in it."""

    def __init__(self, file: BinaryIO, on_bytes: OnBytes) -> None:
        self._file = file
        self._on_bytes = on_bytes
        # Bytes that are not UTF-8 become lone surrogates, which are refused with their element.
        self._bytes = codecs.getincrementaldecoder("utf-8")("surrogateescape")
        self._decoder = JSONDecoder(parse_constant=refuse_constant)
        self._text = ""
        self._at = 0
        self._ended = False
        self.line = 1
        self.before = 1

    def open(self, bracket: str) -> bool:
        """Skip the opening bracket; returns True if an element follows."""
        if self._next() != bracket:
            raise RecordError(f"{_EXPECTED[bracket]} was expected")
        self._at += 1
        return self._next() != _CLOSING[bracket]

    def key(self) -> str:
        """Skip a key of an object and the colon after it; returns the key."""
        key = self.take()
        if not isinstance(key, str) or self._next() != ":":
            raise RecordError("the object has a value without a key")
        self._at += 1
        return key

    def separate(self, bracket: str) -> bool:
        """Skip the comma after an element; returns False if the closing bracket is in its place."""
        found = self._next()
        if found == bracket:
            return False
        name = _NAMES[bracket]
        if not found:
            raise RecordError(f"{name} has no closing bracket; its file may have been cut off")
        if found != ",":
            raise RecordError(f"{name} has no comma between two elements")
        self._at += 1
        self._next()
        return True

    def skip(self) -> None:
        """Skip a closing bracket."""
        self._at += 1

    def end(self) -> None:
        """Skip the last closing bracket."""
        closed = self._text[self._at]
        self.skip()
        if self._next():
            raise RecordError(f"{_NAMES[closed]} goes on after its end")

    def _next(self) -> str:
        """Skip space; returns the character after it, or "" at the end of the file."""
        while True:
            while self._at < len(self._text):
                character = self._text[self._at]
                if not character.isspace():
                    return character
                self.line += character == "\n"
                self._at += 1
            if not self._more(CHUNK):
                return ""

    def take(self) -> object:
        """The next element."""
        if not self._next():
            raise RecordError("the list has no closing bracket; its file may have been cut off")
        size = CHUNK
        while True:
            try:
                value, end = self._decoder.raw_decode(self._text, self._at)
                # A number may go on in the next chunk: "1", "1.", "1e" and "1e-" begin with one.
                if len(self._text) - end > len("e-") or self._ended:
                    break
                self._more(size)
            except json.JSONDecodeError:
                if len(self._text) - self._at > MOST_BYTES:
                    raise ValueError(f"it has more than {MOST_BYTES:,} bytes") from None
                if not self._more(size):
                    raise
                size *= 2
        self.before = self.line
        self.line += self._text.count("\n", self._at, end)
        self._at = end
        return value

    def _more(self, size: int) -> bool:
        """Read on; returns False at the end of the file."""
        if self._ended:
            return False
        data = self._file.read(size)
        self._on_bytes(len(data))
        self._ended = not data
        self._text = self._text[self._at :] + self._bytes.decode(data, final=self._ended)
        self._at = 0
        return not self._ended


def refuse_constant(name: str) -> NoReturn:
    """Refuse NaN and infinities, which Python's JSON reads."""
    raise ValueError(f"{name} is no JSON number")

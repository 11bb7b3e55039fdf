"""JSON values of a file, one by one, each with its line; untrusted, and of any number.

A file holds one value per line, one list of values, or a single value over several lines. Only one
value is in memory at a time.
"""

import codecs
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from json import JSONDecoder
from pathlib import Path
from typing import BinaryIO, Final, NoReturn

from qnet.errors import RecordError
from qnet.support.json_depth import MOST_LEVELS, exceeds_max_depth

MOST_BYTES: Final = 64 * 1024**2
"""Most bytes of one value."""
_CHUNK: Final = 256 * 1024
_SPACE: Final = b" \t\r\n"

OnBytes = Callable[[int], None]
"""Told how many bytes were read."""


@dataclass(frozen=True, slots=True)
class Value:
    """One value, or the reason why there is none.

    Attributes:
        line: its first line, from 1.
        flaw: why it cannot be read; "" if it can.
    """

    line: int
    value: object = None
    flaw: str = ""


def read_values(path: Path, *, on_bytes: OnBytes = lambda count: None) -> Iterator[Value]:
    """The values of a file, in order.

    Raises:
        RecordError: the file cannot be read.
    """
    try:
        with path.open("rb") as file:
            skipped = _skip_mark(file)
            match _layout(file):
                case "list":
                    values = _of_list(file, on_bytes)
                case "whole":
                    values = _of_document(file, on_bytes)
                case _:
                    values = _of_lines(file, on_bytes)
            on_bytes(skipped)
            yield from values
    except OSError as error:
        raise RecordError(f"{path} cannot be read: {error.strerror}") from error


def parse_text(text: str) -> object:
    """The JSON that a value of a file holds as text, checked like the value itself.

    Raises:
        RecordError: it is not JSON, or JSON that no row can hold.
    """
    value = _parse(text.encode(errors="surrogatepass"))
    if value.flaw:
        raise RecordError(value.flaw)
    return value.value


def _skip_mark(file: BinaryIO) -> int:
    """Skip a byte-order mark; returns its length."""
    if file.read(3) == codecs.BOM_UTF8:
        return 3
    file.seek(0)
    return 0


def _layout(file: BinaryIO) -> str:
    """The layout of a file, "lines", "list" or "whole"; its position stays where it is."""
    start = file.tell()
    try:
        head = file.read(_CHUNK).lstrip(_SPACE)
        if head.startswith(b"["):
            return "list"
        file.seek(start)
        first = file.readline(MOST_BYTES)
        while first and not first.strip():
            first = file.readline(MOST_BYTES)
        size = file.seek(0, 2) - start
        # A first line that is only the beginning of a value, such as "{", in a file of one value.
        opens = first.strip().endswith((b"{", b"[", b",")) and size <= MOST_BYTES
        return "whole" if opens and _parse(first).flaw else "lines"
    finally:
        file.seek(start)


def _of_lines(file: BinaryIO, on_bytes: OnBytes) -> Iterator[Value]:
    number = 0
    while line := file.readline(MOST_BYTES + 1):
        number += 1
        on_bytes(len(line))
        if len(line) > MOST_BYTES:
            while not line.endswith(b"\n") and (line := file.readline(_CHUNK)):
                on_bytes(len(line))
            yield Value(number, flaw=f"it has more than {MOST_BYTES:,} bytes")
        elif line.strip():
            yield _parse(line, number)


def _of_document(file: BinaryIO, on_bytes: OnBytes) -> Iterator[Value]:
    text = file.read()
    on_bytes(len(text))
    yield _parse(text)


def _of_list(file: BinaryIO, on_bytes: OnBytes) -> Iterator[Value]:
    """The elements of a list; after a flaw in its syntax nothing of it can be read."""
    text = _Window(file, on_bytes)
    try:
        more = text.open()
        while more:
            element = text.take()
            yield _checked(element, text.before)
            more = text.separate()
        text.end()
    except (ValueError, RecursionError, RecordError) as error:
        yield Value(text.line, flaw=_reason(error))


class _Window:
    """The part of a list's text that is in memory."""

    def __init__(self, file: BinaryIO, on_bytes: OnBytes) -> None:
        self._file = file
        self._on_bytes = on_bytes
        # Bytes that are not UTF-8 become lone surrogates, which are refused with their element.
        self._bytes = codecs.getincrementaldecoder("utf-8")("surrogateescape")
        self._decoder = JSONDecoder(parse_constant=_refuse_constant)
        self._text = ""
        self._at = 0
        self._ended = False
        self.line = 1
        self.before = 1

    def open(self) -> bool:
        """Skip the opening bracket; returns True if an element follows."""
        self._next()
        self._at += 1
        return self._next() != "]"

    def separate(self) -> bool:
        """Skip the comma after an element; returns False if the list ends in its place.

        Raises:
            RecordError: neither a comma nor the end follows, or the file ends.
        """
        match self._next():
            case "]":
                return False
            case ",":
                self._at += 1
                self._next()
                return True
            case "":
                raise _cut_off()
            case _:
                raise RecordError("the list has no comma between two elements")

    def end(self) -> None:
        """Skip the closing bracket.

        Raises:
            RecordError: more than space follows.
        """
        self._at += 1
        if self._next():
            raise RecordError("the list goes on after its end")

    def _next(self) -> str:
        """Skip space; returns the character after it, or "" at the end of the file."""
        while True:
            while self._at < len(self._text):
                character = self._text[self._at]
                if not character.isspace():
                    return character
                self.line += character == "\n"
                self._at += 1
            if not self._more(_CHUNK):
                return ""

    def take(self) -> object:
        """The next element.

        Raises:
            ValueError: it is not JSON, or too long.
            RecordError: the file ends before it.
        """
        if not self._next():
            raise _cut_off()
        size = _CHUNK
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


def _parse(text: bytes, line: int = 1) -> Value:
    try:
        value = json.loads(text.decode(), parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        return Value(line, flaw=_reason(error))
    return _checked(value, line)


def _checked(value: object, line: int) -> Value:
    if exceeds_max_depth(value):
        return Value(line, flaw=f"it is nested more than {MOST_LEVELS} levels deep")
    try:
        json.dumps(value, ensure_ascii=False, allow_nan=False).encode()
    except UnicodeEncodeError:
        return Value(line, flaw="it holds text that is not UTF-8")
    except ValueError:
        return Value(line, flaw="it holds a number that is too large, such as 1e999")
    return Value(line, value)


def _cut_off() -> RecordError:
    return RecordError("the list has no closing bracket; its file may have been cut off")


def _reason(error: Exception) -> str:
    """The flaw, without any of the text."""
    match error:
        case RecordError():
            return str(error)
        case json.JSONDecodeError():
            return f"it is not JSON: {error.msg} at character {error.colno}"
        case UnicodeDecodeError():
            return "it is not UTF-8"
        case RecursionError():
            return f"it is nested more than {MOST_LEVELS} levels deep"
        case _:
            return f"it is not JSON that can be read ({str(error)[:60]})"


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON number")

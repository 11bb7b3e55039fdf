"""JSON values of a file, one by one, each with its line; untrusted, and of any number.

A file holds one value per line, one list of values, a single value over several lines, or an object
whose values, or the elements of one of its lists, are the values. Only one of them is in memory at
a time. A file that ends with .gz, .bz2 or .xz is read as what it holds, and each row of a .parquet is
a value.
"""

import bz2
import codecs
import gzip
import json
import lzma
import zlib
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from json import JSONDecoder
from pathlib import Path
from typing import Any, BinaryIO, Final, NoReturn, cast

from qguide.qnet.body_limits import MOST_LEVELS, exceeds_max_depth
from qguide.qnet.errors import RecordError
from qguide.training.data.parquet import PARQUET, read_records
from qguide.training.data.row_files import open_file, size_of

FIRST: Final = "*"
"""Stands for the first value of an object whose keys are ids."""

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
            raise RecordError("there is no closing bracket; the file may have been cut off")
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


_SPACE: Final = b" \t\r\n"
_OPENERS: Final[Mapping[str, Callable[[BinaryIO], Any]]] = {".gz": gzip.open, ".bz2": bz2.open, ".xz": lzma.open}
COMPRESSED: Final = tuple(_OPENERS)
"""Ends of the names of files that are read as what they hold."""


@dataclass(frozen=True, slots=True)
class Value:
    """One value, or the reason why there is none.

    Attributes:
        line: its first line, from 1.
        text: a line that is not parsed yet, in place of the value.
        around: fields of the object around it, and its key there, by the names that were asked for.
    """

    line: int
    value: object = None
    flaw: str = ""
    around: Mapping[str, Any] = field(default_factory=dict)
    text: bytes = b""
    nbytes: int = field(default=1, compare=False)


def read_values(
    path: Path,
    *,
    within: str = "",
    keeping: Collection[str] = (),
    on_bytes: OnBytes = lambda count: None,
    parses: bool = True,
) -> Iterator[Value]:
    """The values of a file, in order.

    Args:
        parses: False leaves lines to `parsed`.
        within: key of the list, in an object that is the whole file, whose elements are the values;
            "*" takes the values of the object itself.
        keeping: fields of that object, before the list, that each value is given.
    """
    try:
        if path.suffix == PARQUET:
            with open_file(path) as file:
                found = enumerate(read_records(file, name=str(path)), start=1)
                rows = (Value(number, text=row, nbytes=len(row)) for number, row in found)
                yield from map(parsed, rows) if parses else rows
            on_bytes(size_of(path))
            return
        with _opened(path, on_bytes) as (file, told):
            skipped = _skip_mark(file)
            match _layout(file, within):
                case "object":
                    values = _of_object(file, within, keeping, told)
                case "list":
                    values = _of_list(file, told)
                case "whole":
                    values = _of_document(file, told)
                case _:
                    values = _of_lines(file, told)
            told(skipped)
            yield from map(parsed, values) if parses else values
    except OSError as error:
        raise RecordError(f"{path} cannot be read: {error.strerror or error}") from error


@contextmanager
def _opened(path: Path, on_bytes: OnBytes) -> Iterator[tuple[BinaryIO, OnBytes]]:
    """A file, decompressed, and whom to tell of its bytes; compressed ones count at the end."""
    opener = _OPENERS.get(path.suffix)
    with open_file(path) as file:
        if opener is None:
            yield cast(BinaryIO, file), on_bytes
            return
        try:
            with opener(cast(BinaryIO, file)) as packed:
                yield cast(BinaryIO, packed), lambda count: None
        except (EOFError, OSError, lzma.LZMAError, zlib.error) as error:
            if isinstance(error, OSError) and (error.errno or type(error) not in (OSError, gzip.BadGzipFile)):
                raise  # of the disk or the network; what bz2 finds in the data has neither number nor class
            raise RecordError(f"{path} cannot be read: its compression is damaged") from error
    on_bytes(size_of(path))


def parse_text(text: str) -> object:
    """The JSON that a value of a file holds as text, checked like the value itself."""
    value = parse_bytes(text.encode(errors="surrogatepass"))
    if value.flaw:
        raise RecordError(value.flaw)
    return value.value


def _skip_mark(file: BinaryIO) -> int:
    """Skip a byte-order mark; returns its length."""
    if file.read(3) == codecs.BOM_UTF8:
        return 3
    file.seek(0)
    return 0


def _layout(file: BinaryIO, within: str) -> str:
    """The layout of a file: "lines", "list", "object" or "whole"; its position stays."""
    start = file.tell()
    try:
        head = file.read(CHUNK).lstrip(_SPACE)
        if head.startswith(b"["):
            return "list"
        if within:
            return "object"
        file.seek(start)
        first = file.readline(MOST_BYTES)
        while first and not first.strip():
            first = file.readline(MOST_BYTES)
        # A first line that is only the beginning of a value, such as "{", in a file of one value.
        opens = first.strip().endswith((b"{", b"[", b","))
        return "whole" if opens and parse_bytes(first).flaw else "lines"
    finally:
        file.seek(start)


def _of_lines(file: BinaryIO, on_bytes: OnBytes) -> Iterator[Value]:
    number = 0
    while line := file.readline(MOST_BYTES + 1):
        number += 1
        on_bytes(len(line))
        if len(line) > MOST_BYTES:
            while not line.endswith(b"\n") and (line := file.readline(CHUNK)):
                on_bytes(len(line))
            yield Value(number, flaw=f"it has more than {MOST_BYTES:,} bytes")
        elif line.strip():
            yield Value(number, text=line, nbytes=len(line))


def _of_document(file: BinaryIO, on_bytes: OnBytes) -> Iterator[Value]:
    text = file.read(MOST_BYTES + 1)
    on_bytes(len(text))
    if len(text) > MOST_BYTES:
        yield Value(1, flaw=f"it has more than {MOST_BYTES:,} bytes; name its format")
    else:
        yield parse_bytes(text)


def _of_list(file: BinaryIO, on_bytes: OnBytes) -> Iterator[Value]:
    """The elements of a list; after a flaw in its syntax nothing of it can be read."""
    text = JsonWindow(file, on_bytes)
    try:
        yield from _elements(text, {})
        text.end()
    except (ValueError, RecursionError, RecordError) as error:
        yield Value(text.line, flaw=_reason(error))


def _of_object(file: BinaryIO, within: str, keeping: Collection[str], on_bytes: OnBytes) -> Iterator[Value]:
    """The values in an object, or in its list `within`; other fields are read and let go."""
    text = JsonWindow(file, on_bytes)
    kept: dict[str, Any] = {}
    try:
        more = text.open("{")
        while more:
            key = text.key()
            if within == FIRST:
                value = text.take()
                yield _checked(value, text.before, {"@key": key})
            elif key == within:
                yield from _elements(text, dict(kept))
                text.skip()
            elif key in keeping:
                kept[key] = _checked(text.take(), text.before).value
            else:
                text.take()
            more = text.separate("}")
        text.end()
    except (ValueError, RecursionError, RecordError) as error:
        yield Value(text.line, flaw=_reason(error))


def _elements(text: JsonWindow, around: Mapping[str, Any]) -> Iterator[Value]:
    more = text.open("[")
    while more:
        element = text.take()
        yield _checked(element, text.before, around)
        more = text.separate("]")


def parsed(value: Value) -> Value:
    """A value, parsed if it is a line that was not."""
    if not value.text or value.flaw:
        return value
    return replace(parse_bytes(value.text, value.line), around=value.around)


def parse_bytes(text: bytes, line: int = 1) -> Value:
    """The one JSON value of these bytes."""
    try:
        value = json.loads(text.rstrip().decode(), parse_constant=refuse_constant)
    except (ValueError, RecursionError) as error:
        return Value(line, flaw=_reason(error))
    return _checked(value, line)


def _checked(value: object, line: int, around: Mapping[str, Any] | None = None) -> Value:
    if exceeds_max_depth(value):
        return Value(line, flaw=f"it is nested more than {MOST_LEVELS} levels deep")
    try:
        nbytes = len(json.dumps(value, ensure_ascii=False, allow_nan=False).encode())
    except UnicodeEncodeError:
        return Value(line, flaw="it holds text that is not UTF-8")
    except ValueError:
        return Value(line, flaw="it holds a number that is too large, such as 1e999")
    return Value(line, value, around=around or {}, nbytes=nbytes)


def _reason(error: Exception) -> str:
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

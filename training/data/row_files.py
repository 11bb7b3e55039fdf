"""Files of rows: JSON lines or parquet, on this machine or wherever fsspec reads.

    runs/trees                     a run folder
    data/trees.parquet             a file
    s3://bucket/trees              a folder of shards, rows-….jsonl or ….parquet, in their order

Rows are read one by one. Those of parquet come as the lines that JSON would have for them.
"""

import hashlib
import json
import logging
import os
import re
import sqlite3
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from glob import escape
from hashlib import sha256
from itertools import groupby
from operator import itemgetter
from os.path import normpath
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, Any, Final, Generic, NamedTuple, TypeVar, cast
from weakref import finalize

from pydantic import BaseModel, ValidationError

from qguide.qnet.errors import ConfigError, RecordError
from qguide.training.data.parquet import PARQUET, read_parquet

Row = TypeVar("Row", bound=BaseModel)

ROWS: Final = "rows.jsonl"
"""The rows of a run folder."""

_SCHEME: Final = re.compile(r"[a-z][a-z0-9+.-]+:")
_MOST_OPEN: Final = 200
"""Files that a store holds open; systems allow a process 256 or more."""
_SHARD: Final = re.compile(r"(rows.*\.jsonl|.*\.parquet)")

_log = logging.getLogger(__name__)


def address_of(path: Path) -> str:
    """The address that a path is, such as "s3://bucket/trees"; "" on this machine.

    `Path` leaves one of the slashes, of which a file's address has three. Stores know no `..`.
    """
    scheme, *rest = (Path(normpath(path)) if ".." in path.parts else path).parts or ("",)
    slashes = "///" if scheme == "file:" else "//"
    return f"{scheme}{slashes}{'/'.join(rest)}" if _SCHEME.fullmatch(scheme) else ""


def has_no_end(path: Path) -> bool:
    """True for a device or a pipe: reading it may never end, or never begin."""
    return path.exists() and not path.is_file() and not path.is_dir()


def regular(path: Path) -> Path:
    """The path itself, to be read whole."""
    if has_no_end(path):
        raise RecordError(f"{path} is a device or a pipe; name a file, or a folder of files")
    return path


def row_files(source: Path) -> list[Path]:
    """The files of a source: a file, a run folder or a folder of shards, here or at an address."""
    if address := address_of(source):
        with _reached(address) as (system, place, _):
            if not system.isdir(place):
                return [source]
            names = [Path(found).name for found in system.ls(place, detail=False)]
    elif source.is_dir():
        names = [path.name for path in source.iterdir()]
    else:
        return [source]
    shards = [ROWS] if ROWS in names else sorted(filter(_SHARD.fullmatch, names))
    return [source / name for name in shards or [ROWS]]


def found_below(folder: Path, pattern: str = "**/*", *, folders: bool = False) -> list[Path]:
    """The files below a folder that a pattern names, by name, here or at an address."""
    if not (address := address_of(folder)):
        return [path for path in sorted(folder.glob(pattern)) if folders or path.is_file()]
    with _reached(address) as (system, place, _):
        found = system.glob(f"{escape(place.rstrip('/'))}/{pattern}", detail=True)
    names = (name for name, told in found.items() if folders or told["type"] == "file")
    return sorted(folder / name.removeprefix(place).lstrip("/") for name in names)


def is_file(path: Path) -> bool:
    """True for a file, here or at an address."""
    if address := address_of(path):
        with _reached(address) as (system, place, _):
            return bool(system.isfile(place))
    return path.is_file()


def size_of(path: Path) -> int:
    """Length of a file in bytes, here or at an address; 0 if its store does not tell it."""
    if address := address_of(path):
        with _reached(address) as (system, place, _):
            return system.size(place) or 0
    return path.stat().st_size


@contextmanager
def _reached(address: str) -> Iterator[tuple[Any, str, bool]]:
    """The file system of an address, the place in it, and if something is there."""
    try:
        import fsspec

        system, place = fsspec.core.url_to_fs(address)
        there = system.exists(place)
    except Exception as error:  # each store has its own, for example without credentials
        raise _unreachable(address, error) from error
    try:
        yield system, place, there
    except (NotImplementedError, OSError, ValueError) as error:
        raise _unreachable(address, error) from error


def _unreachable(address: str, error: Exception) -> ConfigError:
    reason = str(error) or type(error).__name__
    return ConfigError(
        f"{address} cannot be reached: {reason}; install the package that fsspec needs for it, and "
        "give it access by the variables of its store"
    )


@contextmanager
def open_file(path: Path) -> Iterator[IO[bytes]]:
    """Open a file here or at an address, to be read."""
    if address := address_of(path):
        with _reached(address) as (system, place, there):
            if not there:
                raise RecordError(f"{address} does not exist; name another source")
            with system.open(place, "rb") as file:
                yield file
        return
    if not regular(path).is_file():
        raise RecordError(f"{path} does not exist; run the job that writes it first")
    with path.open("rb") as file:
        yield file


@contextmanager
def new_file(path: Path) -> Iterator[IO[bytes]]:
    """A file that appears here or at an address when the block ends, and not if it raises."""
    taken = f"{address_of(path) or path} exists; choose another output, or remove it"
    if address := address_of(path):
        with _reached(address) as (system, place, there):
            if there:
                raise ConfigError(taken)
            with system.transaction, system.open(place, "wb") as file:
                yield file
        return
    if path.exists():
        raise ConfigError(taken)
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(path.name + ".partial")
    try:
        with partial.open("wb") as file:
            yield file
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def whole_lines(path: Path, *, warns: bool = False) -> Iterator[tuple[int, bytes]]:
    """The whole lines of a file with their numbers.

    Args:
        warns: say so if the last one was cut off; a run that is resumed does its task again anyway.
    """
    with open_file(path) as file:
        for number, line in enumerate(file, start=1):
            if line.endswith(b"\n") or is_json(line):
                yield number, line
            elif warns:
                _log.warning(
                    "%s ends within line %d, which is left out: its job was killed, or the file "
                    "was cut off; start the job again to have all rows",
                    path,
                    number,
                )


def is_json(line: bytes) -> bool:
    """True for one whole value."""
    try:
        json.loads(line)
    except ValueError:
        return False
    return True


def lines_of(path: Path, row_type: type[BaseModel]) -> Iterator[tuple[int, bytes]]:
    """The rows of one file as lines of JSON, with their numbers."""
    if path.suffix != PARQUET:
        yield from whole_lines(path, warns=True)
        return
    with open_file(path) as file:
        yield from enumerate(read_parquet(file, row_type, name=str(path)), start=1)


def row_of(line: bytes, row_type: type[Row], *, path: Path, number: int) -> Row:
    """The row that a line holds."""
    try:
        return row_type.model_validate_json(line)
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(map(str, first["loc"])) or "the row"
        raise RecordError(
            f"{path}, line {number}: {field}: {first['msg']}; expected a "
            f"{row_type.__name__}: name another file, or run the job that writes this one again"
            f"{remedy_of(line) if field == 'version' else ''}"
        ) from error


def read_again(line: bytes, row_type: type[Row], *, path: Path) -> Row:
    """The row of a line that was one when it was first read."""
    try:
        return row_type.model_validate_json(line)
    except ValidationError as error:
        raise RecordError(f"{path} was changed while it was read; start again when nothing writes to it") from error


def remedy_of(line: bytes) -> str:
    """The way out for a row of an earlier version, which its fields tell."""
    if any(mark in line for mark in (b'"nodes"', b'"decisions"', b'"outcome_reward"')):
        return "; `qguide convert-records PATH` converts records of an earlier version"
    return "; labels are made again by `qguide label`" if b'"q_values"' in line else ""


class Place(NamedTuple):
    """Begin of a row in a file of a store, and its length, in bytes."""

    file: int
    start: int
    length: int


class RowStore(Generic[Row]):
    """Rows that are read again by their places, in any order, and never held.

    A file of JSON lines on this machine is read where it is. Rows of parquet and of addresses are
    copied to a temporary file when they are first read, because those cannot be read in any order,
    and so are those of more files than may be open at once. Forked processes may read at the same
    time.
    """

    def __init__(self, row_type: type[Row]) -> None:
        self._type = row_type
        self._paths: list[Path] = []
        self._files: list[IO[bytes]] = []
        self._copies: IO[bytes] | None = None
        self._read = sha256()
        self._open = ExitStack()
        finalize(self, self._open.close)

    @property
    def digest(self) -> bytes:
        """A hash of all rows that were read, as they are written."""
        return self._read.digest()

    def add(self, source: Path) -> Iterator[tuple[Place, Row]]:
        """Read a source, and tell the place of each row."""
        for path in row_files(source):
            number, lines = len(self._files), lines_of(path, self._type)
            copied = path.suffix == PARQUET or bool(address_of(path)) or number >= _MOST_OPEN
            file = self._copied() if copied else self._open.enter_context(open_file(path))
            start = file.seek(0, os.SEEK_END) if copied else 0
            self._paths.append(path)
            self._files.append(file)
            for line_number, line in lines:
                row = row_of(line, self._type, path=path, number=line_number)
                self._read.update(line)
                if copied:
                    file.write(line)
                yield Place(number, start, len(line)), row
                start += len(line)
            if copied:
                file.flush()

    def _copied(self) -> IO[bytes]:
        if self._copies is None:
            self._copies = self._open.enter_context(_temporary())
        return self._copies

    def path(self, place: Place) -> Path:
        """The file of a row, as it was named."""
        return self._paths[place.file]

    def line(self, place: Place) -> bytes:
        """The row at a place, as it is written."""
        return os.pread(self._files[place.file].fileno(), place.length, place.start)

    def read(self, place: Place) -> Row:
        """The row at a place."""
        return read_again(self.line(place), self._type, path=self.path(place))


class RowGroups(Generic[Row]):
    """Rows by a key, in the order of the keys' first rows, one group in memory at a time.

    SQLite keeps in a temporary file what is too much for memory, and sorts there.
    """

    def __init__(self, row_type: type[Row]) -> None:
        self._store = RowStore(row_type)
        self._index = sqlite3.connect("")
        finalize(self, self._index.close)
        self._index.execute("CREATE TABLE rows (key, file, start, length)")

    def add(self, source: Path, key: Callable[[Row], str | None]) -> None:
        """Read a source; rows whose key is None are left out."""
        for place, row in self._store.add(source):
            if (found := key(row)) is not None:
                values = (found, *place)
                self._index.execute("INSERT INTO rows VALUES (?, ?, ?, ?)", values)

    def __iter__(self) -> Iterator[list[Row]]:
        """The rows of each key."""
        ordered = self._index.execute(
            "SELECT first, file, start, length FROM (SELECT *, rowid AS number, MIN(rowid) OVER "
            "(PARTITION BY key) AS first FROM rows) ORDER BY first, number"
        )
        for _, places in groupby(ordered, key=itemgetter(0)):
            yield [self._store.read(Place(*place)) for _, *place in places]


@contextmanager
def _temporary() -> Iterator[IO[bytes]]:
    with TemporaryFile() as file:
        yield file


def sha256_of_rows(sources: Iterable[Path]) -> str:
    """One hexadecimal hash over the rows of several sources, in the given order."""
    digest = hashlib.sha256()
    for path in (path for source in sources for path in row_files(source)):
        with open_file(path) as file:
            digest.update(hashlib.file_digest(cast(Any, file), "sha256").digest())
    return digest.hexdigest()


def write_lines(file: IO[bytes], _kind: type[BaseModel], rows: Iterable[BaseModel]) -> int:
    """Write rows as JSON lines; returns their number."""
    count = 0
    for row in rows:
        file.write(row.model_dump_json().encode() + b"\n")
        count += 1
    return count

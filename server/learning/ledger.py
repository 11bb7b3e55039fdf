"""Ledger of learning: an append-only file of lines that several processes write and follow.

    <folder>/ledger.jsonl        one line a record, on the disk before it counts
    <folder>/ledger.jsonl.new    the next ledger while it is written; its one line is the state
    <folder>/ledger.jsonl.lock   held while lines are read, decided upon and written

A line that a crash or a full disk cut short was never counted; the next writer removes it. A ledger that has grown is
replaced by a line of the state that its lines make; its first bytes, which have the number of the ledgers before it,
tell other processes that it is another.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from errno import ENOSPC
from pathlib import Path
from typing import Final

import structlog
from filelock import FileLock
from pydantic import ValidationError

from qguide.server.learning.lines import LINES, AnyLine, StateLine

LEDGER: Final = "ledger.jsonl"
_HEAD: Final = 48  # first bytes, by which ledgers are told apart
_LOCK_TIMEOUT_S: Final = 30.0  # writing takes milliseconds; a lock held for longer belongs to a process that hangs
_log = structlog.get_logger(__name__)


class Ledger:
    """The lines of a folder; used by one thread at a time."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._path = folder / LEDGER
        self._read = 0
        self._head = b""
        self.lines = 0

    @property
    def restarted(self) -> bool:
        """True if the file is not the one that was read: it was removed or replaced."""
        if self._size() < self._read:
            return True
        if not self._head:
            return False
        with self._path.open("rb") as file:
            return not file.read(_HEAD).startswith(self._head)

    def rewind(self) -> None:
        """Let `new` begin with the first line again."""
        self._read, self._head, self.lines = 0, b"", 0

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keep other writers out; the system releases a dead writer's lock."""
        with FileLock(f"{self._path}.lock", timeout=_LOCK_TIMEOUT_S, mode=0o600):
            yield

    def new(self) -> Iterator[AnyLine]:
        """Complete lines that were appended since the last call, by whoever."""
        # The usual case, once a second for each group: no file is opened.
        if self._size() == self._read:
            return
        with self._path.open("rb") as file:
            file.seek(self._read)
            for row in file:
                if not row.endswith(b"\n"):
                    return  # still being written, or cut short
                self._went_on(row)
                try:
                    yield LINES.validate_json(row)
                except ValidationError:
                    _log.error("learning_line_unreadable", file=str(self._path), end=self._read)

    def append(self, line: AnyLine) -> None:
        """Write a line to the disk; the lock is held, and all lines have been read."""
        row = line.model_dump_json().encode() + b"\n"
        descriptor = os.open(self._path, os.O_WRONLY | os.O_CREAT, 0o600)
        with open(descriptor, "wb", buffering=0) as file:
            file.truncate(self._read)  # what follows is a line that was cut short
            file.seek(self._read)
            try:
                written = file.write(row)
                if written != len(row):  # the disk is full
                    raise OSError(ENOSPC, os.strerror(ENOSPC))
                os.fsync(descriptor)
            except OSError:
                file.truncate(self._read)
                raise
        self._went_on(row)

    def replace(self, line: StateLine) -> None:
        """Begin a new ledger with this line; the lock is held, and all lines have been read."""
        row = line.model_dump_json().encode() + b"\n"
        new = self._path.with_name(f"{self._path.name}.new")
        try:
            with open(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
                file.write(row)
                file.flush()
                os.fsync(file.fileno())
            os.replace(new, self._path)
        except OSError:
            new.unlink(missing_ok=True)
            raise
        self.rewind()
        self._went_on(row)

    def _went_on(self, row: bytes) -> None:
        self._head = self._head or row[:_HEAD]
        self._read += len(row)
        self.lines += 1

    def _size(self) -> int:
        try:
            return self._path.stat().st_size
        except FileNotFoundError:
            return 0

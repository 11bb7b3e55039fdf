"""JSON lines in files of a bounded size and number.

    <folder>/<kind>-<time>-<id>.jsonl

A full file is left and a new one begun; the oldest is removed once its successor holds rows. Each
process has files of its own, so several may write into one folder.
"""

import os
import uuid
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import structlog
from pydantic import BaseModel

Undo = Callable[[], bool]
"""Take rows out again, as long as nothing was written after them; False if that failed."""

_log = structlog.get_logger(__name__)


class RotatedFile:
    """The latest `max_files` files of a kind, each of at most `max_bytes`.

    Only their owner may read them: what users said stands in them.
    """

    def __init__(self, folder: Path, kind: str, *, max_bytes: int, max_files: int) -> None:
        self._folder = folder
        self._kind = kind
        self._max_bytes = max_bytes
        self._max_files = max_files
        self._path: Path | None = None
        self._may_rotate = False

    def append(self, rows: Sequence[BaseModel]) -> Undo:
        """Write the rows to the disk, side by side in one file, or none of them.

        A set of rows that is larger than a file may be gets one of its own.

        Raises:
            OSError: they cannot be written; the files are as they were before.
        """
        lines = b"".join(row.model_dump_json().encode() + b"\n" for row in rows)
        path = self._path if self._path and self._has_room(self._path, len(lines)) else self._new()
        size = path.stat().st_size if path.exists() else 0
        undo = partial(_cut, path, size)
        try:
            descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
            with open(descriptor, "ab") as file:
                file.write(lines)
                file.flush()
                os.fsync(descriptor)  # "recorded" holds after a power cut, too
            if not size:
                _sync_folder(self._folder)
        except OSError:
            # A file that goes on after an outage counts once among `max_files`; a new one for
            # each failure would push out recorded ones. But nothing may follow half a line.
            if not undo():
                self._path = None
            raise
        self._path = path
        return undo

    def remove_oldest(self) -> None:
        """Keep the latest `max_files` files; for when all that belongs together is written.

        Empty files are not counted: they hold nothing that a recorded episode should make room
        for, and another process may be about to write into one.
        """
        if not self._may_rotate:
            return
        try:
            files = [path for path in self._files() if path.stat().st_size and path != self._path]
            for old in files[: max(0, len(files) + 1 - self._max_files)]:
                old.unlink(missing_ok=True)
                _log.warning("episode_file_removed", file=old.name, max_files=self._max_files)
        except OSError as error:  # the rows are recorded; the next file tries again
            _log.error("episode_file_not_removed", reason=error.strerror)
        else:
            self._may_rotate = False

    def _files(self) -> list[Path]:
        """All files of the kind, oldest first."""
        return sorted(self._folder.glob(f"{self._kind}-*.jsonl"))

    def _has_room(self, path: Path, size: int) -> bool:
        """False for a file that somebody took away, too: its rows belong together."""
        return path.exists() and path.stat().st_size + size <= self._max_bytes

    def _new(self) -> Path:
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        now = datetime.now(UTC).strftime("%Y%m%dT%H%M%S%f")
        self._may_rotate = True
        return self._folder / f"{self._kind}-{now}-{uuid.uuid4().hex[:8]}.jsonl"


def _sync_folder(folder: Path) -> None:
    """Write a new file's name to the disk."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _cut(path: Path, size: int) -> bool:
    """Shorten a file to an earlier size, or remove one that was new; False if that failed."""
    with suppress(OSError):
        if size:
            os.truncate(path, size)
        else:
            path.unlink(missing_ok=True)
        return True
    return False

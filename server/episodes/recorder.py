"""Recorder of finished episodes to JSONL files.

<folder>/trees-<time>-<id>.jsonl     the input of `qguide label`
<folder>/offers-<time>-<id>.jsonl    the candidates of each step and their Q

When a file is full, a new one is started; the oldest is removed once the new one holds rows. Each process writes its
own files, so several processes can share a folder.
"""

import asyncio
import json
import os
import time
import uuid
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Final

import structlog
from pydantic import BaseModel

from qguide.qnet.records import OfferRow, TreeRow
from qguide.server.episodes.records import NotRecordableError, recorded_rows, texts_of
from qguide.server.episodes.redaction import RedactionError, RedactionProcesses
from qguide.server.episodes.state import ServedEpisode, read_transcript

Undo = Callable[[], bool]
"""Removes rows again, as long as nothing was written after them; False if that failed."""

_log = structlog.get_logger(__name__)
TREES = "trees"
OFFERS = "offers"
NOT_WRITTEN: Final = "the file could not be written; the server's log has the reason"
"""Reason that may pass, as that of a full disk."""


@dataclass(slots=True)
class RotatedFile:
    """The latest `max_files` files of a kind, each of at most `max_bytes`.

    Only their owner may read them, because they hold users' texts.
    """

    folder: Path
    kind: str
    max_bytes: int
    max_files: int
    _path: Path | None = None
    _may_rotate: bool = False

    def append(self, rows: Sequence[BaseModel]) -> Undo:
        """Write all rows to one file on the disk, or none of them.

        Rows that exceed `max_bytes` together get a file of their own.
        """
        lines = b"".join(row.model_dump_json().encode() + b"\n" for row in rows)
        path = self._path
        # A deleted file is not created again.
        if path is None or not path.exists() or path.stat().st_size + len(lines) > self.max_bytes:
            path = self._new()
        size = path.stat().st_size if path.exists() else 0
        undo = partial(_cut, path, size)
        try:
            descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
            with open(descriptor, "ab") as file:
                file.write(lines)
                file.flush()
                os.fsync(descriptor)  # "recorded" must survive a power failure
            if not size:
                _sync_folder(self.folder)
        except OSError:
            # Continue with the same file after an outage: a new file per failure would count towards `max_files` and
            # displace recorded ones. But nothing may follow a partial line.
            if not undo():
                self._path = None
            raise
        self._path = path
        return undo

    def remove_oldest(self) -> None:
        """Delete all but the latest `max_files` files; call it once all related rows are written.

        Empty files are not counted: no recorded episode should be deleted in favour of one, and another process may be
        about to write into it.
        """
        if not self._may_rotate:
            return
        try:
            written = sorted(self.folder.glob(f"{self.kind}-*.jsonl"))  # oldest first
            files = [path for path in written if path.stat().st_size and path != self._path]
            for old in files[: max(0, len(files) + 1 - self.max_files)]:
                old.unlink(missing_ok=True)
                _log.warning("episode_file_removed", file=old.name, max_files=self.max_files)
        except OSError as error:  # the rows are recorded; the next rotation tries again
            _log.error("episode_file_not_removed", reason=error.strerror)
        else:
            self._may_rotate = False

    def _new(self) -> Path:
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        now = datetime.now(UTC).strftime("%Y%m%dT%H%M%S%f")
        self._may_rotate = True
        return self.folder / f"{self.kind}-{now}-{uuid.uuid4().hex[:8]}.jsonl"


def _sync_folder(folder: Path) -> None:
    """Flush a folder, so that the name of a new file survives a power failure."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _cut(path: Path, size: int) -> bool:
    """Truncate a file to an earlier size, or delete a new one; False if that failed."""
    with suppress(OSError):
        if size:
            os.truncate(path, size)
        else:
            path.unlink(missing_ok=True)
        return True
    return False


def warn_of_old_trees(folder: Path) -> None:
    """Log a warning if the folder has trees of version 1, of which nothing is read or learned.

    A file's first line tells, because each process writes its own files.
    """
    old = 0
    for path in folder.glob(f"{TREES}-*.jsonl"):
        with suppress(OSError, ValueError, AttributeError), path.open("rb") as file:
            old += json.loads(file.readline()).get("version") == 1
    if old:
        remedy = (
            f"stop the servers that write to this folder, run `qguide convert-records {folder}`, and start them again"
        )
        _log.warning("old_trees_not_read", files=old, remedy=remedy)


class EpisodeRecorder:
    """Redacts and writes finished episodes."""

    def __init__(
        self, folder: Path, *, max_file_bytes: int, max_files: int, redactor: RedactionProcesses | None = None
    ) -> None:
        self._redactor = redactor
        # One at a time: a thread that converts an episode takes turns with the event loop.
        self._converting = asyncio.Lock()
        self._writing = asyncio.Lock()
        self._trees, self._offers = (
            RotatedFile(folder, kind, max_bytes=max_file_bytes, max_files=max_files) for kind in (TREES, OFFERS)
        )

    async def write(self, episode: ServedEpisode, records: Sequence[bytes]) -> str:
        """Record a closed episode; returns "" or the reason why it was not recorded."""
        try:
            tree, offers = await self._rows(episode, records)
            async with self._writing:
                writing = asyncio.create_task(asyncio.to_thread(self._write, tree, offers))
                try:
                    await asyncio.shield(writing)
                except asyncio.CancelledError:
                    # The thread writes on: as cancelled, the episode would be written again later.
                    await writing
        except (NotRecordableError, RedactionError) as error:
            return str(error)
        except OSError as error:
            _log.error("episode_not_written", reason=error.strerror or type(error).__name__)
            return NOT_WRITTEN
        return ""

    async def close(self) -> None:
        """Abort redactions; an episode that is being written is still completed."""
        if self._redactor is not None:
            await self._redactor.close()

    async def _rows(self, episode: ServedEpisode, records: Sequence[bytes]) -> tuple[TreeRow | None, list[OfferRow]]:
        outcome = episode.outcome
        assert outcome is not None
        if episode.broken:
            raise NotRecordableError(episode.broken)
        rows = partial(recorded_rows, recorded_as=episode.uid, at=time.time())
        async with self._converting:
            transcript = await asyncio.to_thread(read_transcript, records)
            if self._redactor is None:
                return await asyncio.to_thread(rows, transcript, outcome, str)
            texts = await asyncio.to_thread(texts_of, transcript, outcome)
        redacted = dict(zip(texts, await self._redactor.redact(texts), strict=True))
        async with self._converting:
            return await asyncio.to_thread(rows, transcript, outcome, redacted.__getitem__)

    def _write(self, tree: TreeRow | None, offers: Sequence[OfferRow]) -> None:
        undo: Undo = bool if tree is None else self._trees.append([tree])
        try:
            self._offers.append(offers)
        except OSError:
            undo()  # otherwise a retry of the outcome would write the tree twice
            raise
        # Only after both are written: a full disk must not cost an episode already recorded.
        self._trees.remove_oldest()
        self._offers.remove_oldest()

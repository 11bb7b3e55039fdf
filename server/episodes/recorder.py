"""Finished episodes as JSONL files of a bounded size.

    <folder>/trees-<time>-<id>.jsonl     what `qguide label` reads
    <folder>/offers-<time>-<id>.jsonl    the candidates of each step and their Q

A full file is left and a new one begun; the oldest goes when there are too many. Each process has
files of its own, so several may write into one folder.
"""

import asyncio
import importlib
import json
import os
import uuid
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import structlog

from qnet.errors import ConfigError
from server.episodes.records import NotRecordableError, Redact, Row, offer_rows, tree_row
from server.episodes.state import Episode

TREES = "trees"
OFFERS = "offers"

Undo = Callable[[], None]

_log = structlog.get_logger(__name__)


class RotatedFile:
    """JSON lines in files of at most `max_bytes`, of which the latest `max_files` stay."""

    def __init__(self, folder: Path, kind: str, *, max_bytes: int, max_files: int) -> None:
        self._folder = folder
        self._kind = kind
        self._max_bytes = max_bytes
        self._max_files = max_files
        self._path: Path | None = None

    def append(self, rows: Sequence[Row]) -> Undo:
        """Write the rows side by side into one file, or none; a larger set alone fills a file.

        Returns:
            What takes them out again, as long as nothing was written after them.

        Raises:
            OSError: they cannot be written.
        """
        lines = b"".join(json.dumps(row, ensure_ascii=False).encode() + b"\n" for row in rows)
        if self._path is None or self._size() + len(lines) > self._max_bytes:
            self._path = self._new()
        undo = partial(_cut, self._path, self._path.stat().st_size if self._path.exists() else 0)
        try:
            with self._path.open("ab") as file:
                file.write(lines)
        except OSError:
            self._path = None  # nothing may follow half a line, should it stay
            undo()
            raise
        return undo

    def _size(self) -> int:
        """Bytes in the current file; one that somebody took away is full."""
        assert self._path is not None
        return self._path.stat().st_size if self._path.exists() else self._max_bytes

    def _new(self) -> Path:
        self._folder.mkdir(parents=True, exist_ok=True)
        now = datetime.now(UTC).strftime("%Y%m%dT%H%M%S%f")
        path = self._folder / f"{self._kind}-{now}-{uuid.uuid4().hex[:8]}.jsonl"
        others = sorted(self._folder.glob(f"{self._kind}-*.jsonl"))
        for old in others[: max(0, len(others) + 1 - self._max_files)]:
            old.unlink(missing_ok=True)
            _log.warning("episode_file_removed", file=old.name, max_files=self._max_files)
        return path


class EpisodeRecorder:
    """Writes each finished episode once it was redacted.

    Args:
        redact: the operator's; every text goes through it before it is written.
    """

    def __init__(
        self, folder: Path, *, max_file_bytes: int, max_files: int, redact: Redact
    ) -> None:
        self._redact = redact
        self._trees, self._offers = (
            RotatedFile(folder, kind, max_bytes=max_file_bytes, max_files=max_files)
            for kind in (TREES, OFFERS)
        )

    async def write(self, episode: Episode) -> str:
        """Record a closed episode; why it could not be, or ""."""
        try:
            await asyncio.to_thread(self._write, episode)
        except NotRecordableError as error:
            return str(error)
        except OSError as error:
            _log.error("episode_not_written", reason=type(error).__name__)
            return "its file could not be written; the server's log says more"
        return ""

    def _write(self, episode: Episode) -> None:
        assert episode.outcome is not None
        tree = tree_row(episode, episode.outcome, self._checked)
        offers = list(offer_rows(episode, episode.outcome, self._checked))
        undo = self._trees.append([tree])
        try:
            self._offers.append(offers)
        except OSError:
            undo()  # who tells it again would have the tree twice
            raise

    def _checked(self, text: str) -> str:
        """The redacted text; nothing is written where the hook fails."""
        try:
            redacted = self._redact(text)
            redacted.encode()
        except Exception as error:  # the operator's code; its message may hold the text
            _log.error("redaction_failed", reason=type(error).__name__)
            raise NotRecordableError("the redaction hook failed") from None
        return redacted


def _cut(path: Path, size: int) -> None:
    """Shorten a file to what it was."""
    with suppress(OSError):  # as full as the disk may be, there is nothing else to be done
        os.truncate(path, size)


def unredacted(text: str) -> str:
    """What is used where the operator names no hook."""
    return text


def load_redaction(name: str) -> Redact:
    """The operator's function `module:function`.

    Raises:
        ConfigError: there is no such function.
    """
    module, _, function = name.partition(":")
    try:
        redact: Redact = getattr(importlib.import_module(module), function)
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigError(
            f"QGUIDE_EPISODES_REDACT is {name!r}, which cannot be imported ({error}); name a "
            "function as module:function"
        ) from error
    if not callable(redact):
        raise ConfigError(f"QGUIDE_EPISODES_REDACT is {name!r}, which is no function")
    return redact

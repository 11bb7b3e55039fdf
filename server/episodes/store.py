"""Store of open episodes: the protocol and the implementation in memory.

<folder>/<id>.open        an SQLite database of what is in one server's memory, locked as long as it lives
<folder>/<id>.open-wal    its latest changes
<folder>/<id>.unreadable  one with what this version cannot read, for as long as an episode is kept
<folder>/open.lock        held by a server that starts

It is written with each step. Nothing waits for the disk: that outlasts a process that is killed, and may not outlast a
machine that fails.
"""

import math
import os
import sqlite3
import time
import uuid
from collections import Counter, OrderedDict, defaultdict
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from dataclasses import dataclass, field
from heapq import merge
from pathlib import Path
from typing import Final, Protocol, Self

import structlog
from filelock import FileLock

from qguide.server.episodes.state import EpisodeChange, ServedEpisode
from qguide.server.observability.request_context import owner_of

_SUFFIX: Final = ".open"
_UNREADABLE: Final = ".unreadable"
_SET_UP: Final = """
PRAGMA locking_mode = EXCLUSIVE;
PRAGMA journal_mode = WAL;
PRAGMA synchronous = OFF;
PRAGMA secure_delete = ON;
CREATE TABLE IF NOT EXISTS episodes (place TEXT PRIMARY KEY, at REAL, state BLOB);
CREATE TABLE IF NOT EXISTS records (place TEXT, number INTEGER, record BLOB);
CREATE INDEX IF NOT EXISTS records_of ON records (place, number);
"""
_LOCK: Final = "open.lock"
_LOCK_TIMEOUT_S: Final = 60.0  # longer than a server reads what others have left
_log = structlog.get_logger(__name__)

Change = Callable[[ServedEpisode | None], EpisodeChange]
"""Maps the stored episode, or None, to its new state; pure, because it may be called again."""


class EpisodeStore(Protocol):
    """Stores episodes for a limited time."""

    async def get(self, episode_id: str) -> ServedEpisode | None:
        """The episode, or None if it is unknown."""

    async def update(self, episode_id: str, change: Change) -> ServedEpisode:
        """Change an episode atomically. Exceptions of `change` propagate and leave the episode unchanged."""

    async def records(self, episode_id: str) -> Sequence[bytes]:
        """The step records of an episode, in order; none if they are lost."""

    def claimed(self, episode_id: str) -> AbstractAsyncContextManager[bool]:
        """Claim the episode for the block; False if another replica has claimed it."""


@dataclass(frozen=True, slots=True)
class _OpenRow:
    """An episode in a file; `at` is the Unix time of its change."""

    place: str
    at: float
    state: ServedEpisode
    records: list[bytes]


class OpenFile:
    """The episodes of one server on the disk; for one thread."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.has_unreadable = False
        self._db = sqlite3.connect(f"{path.absolute().as_uri()}?mode=rw", uri=True, timeout=0)
        try:
            self._db.executescript(_SET_UP)
        except sqlite3.Error:
            self._db.close()
            raise

    @classmethod
    def new(cls, folder: Path) -> Self:
        """A file that nobody else has; only its owner may read it, because it holds users' texts."""
        path = folder / f"{uuid.uuid4().hex[:8]}{_SUFFIX}"
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
        return cls(path)

    def put(self, place: str, at: float, state: bytes, records: Sequence[bytes], *, saved: int) -> None:
        """Write an episode.

        Args:
            saved: number of these that the file has; if it is not, what it has are others.
        """
        with self._db:
            if not 0 < saved <= len(records):
                self._db.execute("DELETE FROM records WHERE place = ?", (place,))
                saved = 0
            new = ((place, number, records[number]) for number in range(saved, len(records)))
            self._db.executemany("INSERT INTO records VALUES (?, ?, ?)", new)
            self._db.execute("REPLACE INTO episodes VALUES (?, ?, ?)", (place, at, state))

    def remove(self, place: str) -> None:
        """Delete an episode."""
        with self._db:
            self._db.execute("DELETE FROM records WHERE place = ?", (place,))
            self._db.execute("DELETE FROM episodes WHERE place = ?", (place,))

    def rows(self) -> Iterator[_OpenRow]:
        """All episodes of the file that can be read, in the order of their changes."""
        of_place = "SELECT record FROM records WHERE place = ? ORDER BY number"
        try:
            for place, at, state in self._db.execute("SELECT place, at, state FROM episodes ORDER BY at"):
                records = [record for (record,) in self._db.execute(of_place, (place,))]
                try:
                    yield _OpenRow(place, at, ServedEpisode.model_validate_json(state), records)
                except ValueError:  # of another version
                    self.has_unreadable = True
                    _log.error("episode_not_taken_up", file=self.path.name)
        except sqlite3.DatabaseError as error:  # the machine failed
            self.has_unreadable = True
            _log.error("episodes_not_taken_up", file=self.path.name, reason=str(error))

    def close(self) -> None:
        """Let go of the file."""
        self._db.close()


@dataclass(slots=True)
class _Kept:
    """An episode, and when it was changed; JSON."""

    changed_s: float
    state: bytes
    records: list[bytes]
    nbytes: int
    saved: int = 0


@dataclass(slots=True, kw_only=True)
class MemoryEpisodeStore:
    """Episodes as JSON in this process; a step appends its record and rewrites none."""

    # memory for all episodes. When it is full, the key that holds most loses its least recently used episode, so with K
    # keys each is sure of a K-th of the memory.
    max_bytes: int
    ttl_s: float  # time without a step after which an episode expires
    clock: Callable[[], float] = time.monotonic
    # Not an `LRUCache`: episodes expire, and a full store drops those of its largest key.
    _kept: OrderedDict[str, _Kept] = field(default_factory=OrderedDict)
    _of_owner: defaultdict[str, OrderedDict[str, None]] = field(default_factory=lambda: defaultdict(OrderedDict))
    _bytes: Counter[str] = field(default_factory=Counter)
    _file: OpenFile | None = None
    _unsaved: set[str] = field(default_factory=set)

    @property
    def nbytes(self) -> int:
        """Size of all stored episodes in bytes."""
        return self._bytes.total()

    async def get(self, episode_id: str) -> ServedEpisode | None:
        """The episode, or None if it is unknown."""
        self._forget_old()
        return self._read(episode_id)

    async def update(self, episode_id: str, change: Change) -> ServedEpisode:
        """Change an episode atomically, because there is no `await` within."""
        self._forget_old()
        changed = change(self._read(episode_id))
        self.put(episode_id, changed)
        return changed.episode

    async def records(self, episode_id: str) -> Sequence[bytes]:
        """The step records of an episode, in order."""
        kept = self._kept.get(episode_id)
        return tuple(kept.records) if kept else ()

    @asynccontextmanager
    async def claimed(self, episode_id: str) -> AsyncIterator[bool]:
        """True: no other replica knows the episode, and `Episodes` has a lock for it."""
        yield True

    def take_up(self, folder: Path, *, keeps: bool = True) -> list[tuple[str, ServedEpisode]]:
        """Keep the episodes in a file, too, and go on with those that servers which have ended left.

        Args:
            keeps: False only goes on, and leaves no file, not even of what it cannot read.
        """
        began = time.time() - self.clock()
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        with FileLock(folder / _LOCK, timeout=_LOCK_TIMEOUT_S, mode=0o600):
            left = _left_by_others(folder)
            self._file = OpenFile.new(folder) if keeps else None
            for row in merge(*(file.rows() for file in left), key=lambda row: row.at):
                self.drop(row.place)  # two servers may have left it; the later change counts
                self._keep(row.place, row.state, row.records, changed_s=row.at - began)
                self._forget_old()  # first, so that none makes room for what has expired
                self._make_room()
            for place in self._kept:
                self._save(place)
            for file in left:
                file.close()
                if file.has_unreadable:
                    _set_aside(file.path)
                elif not self._unsaved:
                    file.path.unlink()
            kept_since = time.time() - self.ttl_s if keeps else math.inf
            for path in folder.glob(f"*{_UNREADABLE}*"):  # which hold users' texts
                if path.stat().st_mtime < kept_since:
                    path.unlink()
        return [(place, ServedEpisode.model_validate_json(kept.state)) for place, kept in self._kept.items()]

    def close(self) -> None:
        """Leave the episodes in the file, for a later start."""
        for place in tuple(self._unsaved):
            self._save(place)
        if self._file is not None:
            self._file.close()
            self._file = None

    def put(self, episode_id: str, changed: EpisodeChange, *, before: Sequence[bytes] = ()) -> None:
        """Store the new state of an episode, and append its record to those that are stored."""
        known = self.drop(episode_id)
        records = known.records if known and changed.episode.records else []
        records += before
        if changed.record is not None:
            records.append(changed.record)
        self._keep(episode_id, changed.episode, records, changed_s=self.clock(), saved=known.saved if known else 0)
        self._save(episode_id)
        self._make_room()

    def drop(self, episode_id: str) -> _Kept | None:
        """Take an episode out of the store."""
        kept = self._kept.pop(episode_id, None)
        if kept is None:
            return None
        owner = owner_of(episode_id)
        del self._of_owner[owner][episode_id]
        self._bytes[owner] -= kept.nbytes
        if not self._of_owner[owner]:
            del self._of_owner[owner], self._bytes[owner]
        return kept

    def _read(self, episode_id: str) -> ServedEpisode | None:
        kept = self._kept.get(episode_id)
        return None if kept is None else ServedEpisode.model_validate_json(kept.state)

    def _forget_old(self) -> None:
        oldest = self.clock() - self.ttl_s
        while self._kept and next(iter(self._kept.values())).changed_s < oldest:
            self._forget(next(iter(self._kept)))

    def _make_room(self) -> None:
        while self.nbytes > self.max_bytes:
            [(largest, _)] = self._bytes.most_common(1)
            self._forget(next(iter(self._of_owner[largest])))

    def _forget(self, episode_id: str) -> None:
        self.drop(episode_id)
        self._save(episode_id)

    def _save(self, episode_id: str) -> None:
        """Write what the file lacks of an episode, if there is one; what a full disk refuses comes later."""
        if self._file is None:
            return
        kept = self._kept.get(episode_id)
        try:
            if kept is None:
                self._file.remove(episode_id)
            else:
                at = time.time() - self.clock() + kept.changed_s
                self._file.put(episode_id, at, kept.state, kept.records, saved=kept.saved)
                kept.saved = len(kept.records)
            self._unsaved.discard(episode_id)
        except sqlite3.Error as error:
            self._unsaved.add(episode_id)
            _log.error("open_episode_not_saved", reason=str(error))

    def _keep(
        self, episode_id: str, episode: ServedEpisode, records: list[bytes], *, changed_s: float, saved: int = 0
    ) -> None:
        owner, state = owner_of(episode_id), episode.to_json()
        nbytes = len(state) + episode.record_bytes
        self._kept[episode_id] = _Kept(changed_s, state, records, nbytes, saved)
        self._of_owner[owner][episode_id] = None
        self._bytes[owner] += nbytes


def _left_by_others(folder: Path) -> list[OpenFile]:
    """The files of servers that have ended, which are locked then."""
    found = []
    for path in folder.glob(f"*{_SUFFIX}"):
        try:
            found.append(OpenFile(path))
        except sqlite3.Error as error:
            if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY:  # else its server lives
                _log.error("episodes_not_taken_up", file=path.name, reason=str(error))
                _set_aside(path)
    return found


def _set_aside(path: Path) -> None:
    """Rename a file and its latest changes, so that no start takes them up again."""
    for end in ("", "-wal"):
        with suppress(FileNotFoundError):
            aside = path.with_name(path.name + end).rename(path.with_name(f"{path.stem}{_UNREADABLE}{end}"))
            aside.touch()  # its time is kept from now on

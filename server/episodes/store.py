"""Store of open episodes: the protocol and the implementation in memory.

<folder>/<id>.open   episodes of a server that has stopped, until the next start takes them up
"""

import os
import time
import uuid
from collections import Counter, OrderedDict, defaultdict
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import structlog
from pydantic import BaseModel, ConfigDict

from qguide.server.episodes.state import Episode, EpisodeChange
from qguide.server.observability.request_context import owner_of

_log = structlog.get_logger(__name__)

Change = Callable[[Episode | None], EpisodeChange]
"""Maps the stored episode, or None, to its new state; pure, because it may be called again."""


class EpisodeStore(Protocol):
    """Stores episodes for a limited time."""

    async def get(self, episode_id: str) -> Episode | None:
        """The episode, or None if it is unknown."""
        ...

    async def update(self, episode_id: str, change: Change) -> Episode:
        """Change an episode atomically.

        Exceptions of `change` propagate and leave the episode unchanged.
        """
        ...

    async def records(self, episode_id: str) -> Sequence[bytes]:
        """The step records of an episode, in order; none if they are lost."""
        ...

    def claimed(self, episode_id: str) -> AbstractAsyncContextManager[bool]:
        """Claim the episode for the block; False if another replica has claimed it."""
        ...


class _Waiting(BaseModel):
    """An episode on the disk; `at` is the Unix time of its change."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    place: str
    at: float
    state: Episode
    records: tuple[str, ...]


@dataclass(slots=True)
class _Kept:
    """An episode, and when it was changed; JSON."""

    changed_s: float
    state: bytes
    records: list[bytes]
    nbytes: int


class MemoryEpisodeStore:
    """Episodes as JSON in this process; a step appends its record and rewrites none.

    Args:
        max_bytes: memory for all episodes. When it is full, the key that holds most loses its least
            recently used episode, so with K keys each is sure of a K-th of the memory.
        ttl_s: time without a step after which an episode expires.
    """

    def __init__(self, *, max_bytes: int, ttl_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self.max_bytes = max_bytes
        self._ttl_s = ttl_s
        self._clock = clock
        # Not an `LRUCache`: episodes expire, and a full store drops those of its largest key.
        self._kept: OrderedDict[str, _Kept] = OrderedDict()
        self._of_owner: defaultdict[str, OrderedDict[str, None]] = defaultdict(OrderedDict)
        self._bytes: Counter[str] = Counter()

    @property
    def nbytes(self) -> int:
        """Size of all stored episodes in bytes."""
        return self._bytes.total()

    async def get(self, episode_id: str) -> Episode | None:
        """The episode, or None if it is unknown."""
        self._forget_old()
        return self._read(episode_id)

    async def update(self, episode_id: str, change: Change) -> Episode:
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

    def leave(self, folder: Path) -> None:
        """Write the episodes to the folder, for a later start.

        Raises:
            OSError: they cannot be written; the folder is as before.
        """
        if not self._kept:
            return
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        began, path = time.time() - self._clock(), folder / f"{uuid.uuid4().hex[:8]}.open"
        new = path.with_suffix(".new")
        try:
            with open(os.open(new, os.O_WRONLY | os.O_CREAT, 0o600), "wb") as file:
                for place, kept in self._kept.items():
                    texts = [record.decode() for record in kept.records]
                    state = Episode.model_validate_json(kept.state)
                    row = _Waiting(place=place, at=began + kept.changed_s, state=state, records=texts)
                    file.write(row.model_dump_json().encode() + b"\n")
            new.rename(path)
        except OSError:
            new.unlink(missing_ok=True)
            raise

    def take_up(self, folder: Path) -> None:
        """Go on with the episodes that wait in the folder, which nobody else takes up then."""
        began = time.time() - self._clock()
        for row in sorted(_taken(folder), key=lambda row: row.at):
            records = [record.encode() for record in row.records]
            self.drop(row.place)  # two servers may have left it; the later change counts
            self._keep(row.place, row.state, records, changed_s=row.at - began)
        self._forget_old()

    def put(self, episode_id: str, changed: EpisodeChange, *, before: Sequence[bytes] = ()) -> None:
        """Store the new state of an episode, and append its record to those that are stored.

        Args:
            before: further records, to be appended first.
        """
        known = self.drop(episode_id)
        records = known.records if known and changed.episode.records else []
        records += before
        if changed.record is not None:
            records.append(changed.record)
        self._keep(episode_id, changed.episode, records, changed_s=self._clock())
        while self.nbytes > self.max_bytes:
            [(largest, _)] = self._bytes.most_common(1)
            self.drop(next(iter(self._of_owner[largest])))

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

    def _read(self, episode_id: str) -> Episode | None:
        kept = self._kept.get(episode_id)
        return None if kept is None else Episode.model_validate_json(kept.state)

    def _forget_old(self) -> None:
        oldest = self._clock() - self._ttl_s
        while self._kept and next(iter(self._kept.values())).changed_s < oldest:
            self.drop(next(iter(self._kept)))

    def _keep(self, episode_id: str, episode: Episode, records: list[bytes], *, changed_s: float) -> None:
        owner, state = owner_of(episode_id), episode.to_json()
        nbytes = len(state) + episode.record_bytes
        self._kept[episode_id] = _Kept(changed_s, state, records, nbytes)
        self._of_owner[owner][episode_id] = None
        self._bytes[owner] += nbytes


def _taken(folder: Path) -> Iterator[_Waiting]:
    """Episodes that wait in a folder; their files are removed."""
    for path in folder.glob("*.open"):
        mine = path.with_suffix(".taken")
        try:
            path.rename(mine)  # of several processes that start, one succeeds
            lines = mine.read_bytes().splitlines()
            mine.unlink()
        except OSError as error:
            _log.error("episodes_not_taken_up", file=path.name, reason=error.strerror)
            continue
        for line in lines:
            try:
                yield _Waiting.model_validate_json(line)
            except ValueError:  # of another version
                _log.error("episode_not_taken_up", file=path.name)

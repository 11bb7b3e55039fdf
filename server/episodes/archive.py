"""Index of the recorded episodes of a folder, for listing and searching them.

Files are read once; after that only what was appended to them, and all again once one was rewritten, as by an operator
who deletes episodes. Rows stay in the files: the index holds where they are, the Q of each step, and the beginning of
the texts. Several processes may write to the folder (see
`qguide.server.episodes.recorder`); lines that are no rows are skipped.
"""

import os
import threading
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Generic, TypeVar

from pydantic import Field, ValidationError

from qguide.qnet.errors import UnknownEpisodeError
from qguide.qnet.records import OfferRow, TreeRow
from qguide.server.episodes.recorder import OFFERS, TREES
from qguide.server.own_bodies.schemas import Body, JudgeFlag

MOST_EPISODES: Final = 5_000
"""Episodes that are listed: the newest; also trees that wait for their offers."""
SEARCHED_CHARACTERS: Final = 4_000
"""Of the texts of an episode."""
_TITLE_CHARACTERS: Final = 300

R = TypeVar("R", OfferRow, TreeRow)


@dataclass(frozen=True, slots=True)
class Span:
    """One line of a file."""

    path: Path
    start: int
    length: int

    def read(self) -> bytes:
        """The line."""
        with self.path.open("rb") as file:
            file.seek(self.start)
            return file.read(self.length)


class RecordedStep(Body):
    """Q of one step."""

    depth: int = Field(description="number of the action in the episode, from 1")
    taken: float | None = Field(description="of the action taken; null if it was not scored")
    lowest: float | None = Field(description="of all candidates; null if none was scored")
    highest: float | None


class RecordedEpisode(Body, frozen=False):
    """A recorded episode."""

    episode: str = Field(description="the id in its rows, which is not the caller's")
    task_id: str
    task: str = Field(description="end of the first observation; empty if it is not known")
    reward: float
    steps: list[RecordedStep]
    policy: str
    q_model: str
    judge: JudgeFlag = False


@dataclass(slots=True)
class _Recorded:
    """A recorded episode in the index."""

    told: RecordedEpisode
    actions: list[str] = field(default_factory=list)  # those that were taken
    offers: list[Span] = field(default_factory=list)
    tree: Span | None = None
    seen: str = ""  # beginning of its first observation
    searched: str = ""  # beginning of its texts in lower case: title, actions, first observation

    def add(self, span: Span, offer: OfferRow) -> None:
        """Add a step; one that is recorded again is there already: the steps of an episode go ever deeper."""
        if self.told.steps and offer.depth <= self.told.steps[-1].depth:
            return
        q_values = {one.content: one.q_value for one in offer.candidates}
        read = [q for q in q_values.values() if q is not None]
        step = RecordedStep(
            depth=offer.depth,
            taken=q_values.get(offer.taken),
            lowest=min(read, default=None),
            highest=max(read, default=None),
        )
        self.told.steps.append(step)
        self.offers.append(span)
        if offer.taken:  # not a step that was stopped
            self.actions.append(offer.taken)

    def see(self, span: Span, first_observation: str) -> None:
        """Add what was seen."""
        self.tree, self.seen = span, first_observation[:SEARCHED_CHARACTERS]
        self.told.task = first_observation[-_TITLE_CHARACTERS:]

    def index(self) -> None:
        """Let it be found by its words."""
        text = "\n".join([self.told.task, self.told.task_id, *self.actions, self.seen]).lower()
        self.searched = text[:SEARCHED_CHARACTERS]


@dataclass(slots=True)
class _Lines(Generic[R]):
    """Rows of a folder's files of one kind, each of which is read once."""

    folder: Path
    kind: str
    row: type[R]
    _read: dict[Path, tuple[int, int]] = field(default_factory=dict)  # inode, and bytes that were read

    def rewritten(self) -> bool:
        """True if rows are not any more where they were read."""
        for path, (inode, known) in self._read.items():
            with suppress(OSError):  # removed
                now = path.stat()
                if now.st_ino != inode or now.st_size < known:
                    return True
        return False

    def forget(self) -> None:
        """Read all rows again."""
        self._read.clear()

    def new(self) -> Iterator[tuple[Span, R]]:
        """Rows that were appended since the last call, oldest first."""
        for path in sorted(self.folder.glob(f"{self.kind}-*.jsonl")):
            _, known = self._read.get(path, (0, 0))
            try:
                with path.open("rb") as file:
                    inode = os.fstat(file.fileno()).st_ino
                    file.seek(known)
                    for line in file:
                        if not line.endswith(b"\n"):
                            break  # still being written
                        span = Span(path, known, len(line))
                        known += len(line)
                        self._read[path] = inode, known
                        try:
                            yield span, self.row.model_validate_json(line)
                        except ValidationError:
                            continue
            except OSError:
                continue  # removed meanwhile


class EpisodeArchive:
    """The newest episodes of a folder; threads may share it."""

    def __init__(self, folder: Path) -> None:
        self._lock = threading.Lock()
        self._offers = _Lines(folder, OFFERS, OfferRow)
        self._trees = _Lines(folder, TREES, TreeRow)
        self._episodes: dict[str, _Recorded] = {}
        self._alone: dict[str, tuple[Span, str]] = {}  # trees without offers, and their first observations

    def newest(
        self, *, search: str = "", rewarded: bool | None = None, limit: int
    ) -> tuple[list[RecordedEpisode], int]:
        """The newest matching episodes, newest first, and how many match."""
        words = search.lower().split()
        with self._lock:
            self._update()
            found = [
                episode.told
                for episode in reversed(self._episodes.values())
                if rewarded in (None, episode.told.reward > 0) and all(word in episode.searched for word in words)
            ]
        return found[:limit], len(found)

    def rows(self, episode_id: str) -> tuple[list[OfferRow], TreeRow | None]:
        """The rows of an episode: the candidates of its steps, and what was seen."""
        with self._lock:
            self._update()
            found = self._episodes.get(episode_id)
        try:
            if found is not None:
                offers = [OfferRow.model_validate_json(span.read()) for span in found.offers]
                tree = TreeRow.model_validate_json(found.tree.read()) if found.tree else None
                return offers, tree
        except (OSError, ValidationError):
            pass
        raise UnknownEpisodeError(
            f"no recorded episode is {episode_id[:80]!r}; GET /v1/episodes lists them, and the oldest are removed with "
            "their files (QGUIDE_EPISODES_MAX_FILES)"
        )

    def _update(self) -> None:
        if self._offers.rewritten() or self._trees.rewritten():
            for read in (self._offers, self._trees):
                read.forget()
            self._episodes.clear()
            self._alone.clear()
        for span, tree in self._trees.new():
            self._alone[tree.episode] = span, tree.first_observation
        changed = set(self._alone)
        for span, offer in self._offers.new():
            if not offer.episode:
                continue  # a row of version 0.1.0, which names no episode
            if (episode := self._episodes.get(offer.episode)) is None:
                told = RecordedEpisode(
                    episode=offer.episode,
                    task_id=offer.task_id,
                    task="",
                    steps=[],
                    reward=offer.outcome_reward,
                    policy=offer.policy,
                    q_model=offer.q_model,
                    judge=offer.judge,
                )
                episode = self._episodes[offer.episode] = _Recorded(told)
            episode.add(span, offer)
            changed.add(offer.episode)
        for name in changed & self._episodes.keys():
            if name in self._alone:
                self._episodes[name].see(*self._alone.pop(name))
            self._episodes[name].index()
        for kept in (self._episodes, self._alone):
            for oldest in list(kept)[: max(0, len(kept) - MOST_EPISODES)]:
                del kept[oldest]

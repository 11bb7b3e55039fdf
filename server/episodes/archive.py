"""Index of the recorded episodes of a folder, for listing and searching them.

Files are read once; after that only what was appended to them. Rows stay in the files: the index holds where they are,
the Q of each step, and the beginning of the texts. Several processes may write to the folder (see
`qguide.server.episodes.recorder`); lines that are no rows are skipped.
"""

import threading
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Generic, TypeVar

from pydantic import Field, ValidationError

from qguide.qnet.errors import UnknownEpisodeError
from qguide.qnet.records import OfferRow, TreeRow
from qguide.server.episodes.recorder import OFFERS, TREES
from qguide.server.own_bodies.schemas import Body, JudgeFlag

MOST_EPISODES: Final = 5_000
"""Episodes that are listed: the newest; also paths of a task that wait for their offers."""
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
    actions: list[tuple[int, str]] = field(default_factory=list)  # those that were taken, with their depths
    offers: list[Span] = field(default_factory=list)
    tree: Span | None = None
    searched: str = ""  # beginning of its texts in lower case: title, actions, first observation


@dataclass(frozen=True, slots=True)
class _Path:
    """A recorded path: its actions, and what is shown of it."""

    span: Span
    actions: tuple[str, ...]
    reward: float
    first_observation: str


@dataclass(slots=True)
class _Lines(Generic[R]):
    """Rows of a folder's files of one kind, each of which is read once."""

    folder: Path
    kind: str
    row: type[R]
    _read: dict[Path, int] = field(default_factory=dict)

    def new(self) -> Iterator[tuple[Span, R]]:
        """Rows that were appended since the last call, oldest first."""
        for path in sorted(self.folder.glob(f"{self.kind}-*.jsonl")):
            known = self._read.get(path, 0)
            try:
                with path.open("rb") as file:
                    file.seek(known)
                    for line in file:
                        if not line.endswith(b"\n"):
                            break  # still being written
                        span = Span(path, known, len(line))
                        known += len(line)
                        self._read[path] = known
                        try:
                            yield span, self.row.model_validate_json(line)
                        except ValidationError:
                            continue
            except OSError:
                continue  # removed meanwhile


class EpisodeArchive:
    """The newest episodes of a folder; threads may share it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._lock = threading.Lock()
        self._offers = _Lines(folder, OFFERS, OfferRow)
        self._trees = _Lines(folder, TREES, TreeRow)
        self._episodes: dict[str, _Recorded] = {}
        self._paths: dict[str, deque[_Path]] = {}

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
        for span, tree in self._trees.new():
            actions = tuple(node.action for node in tree.tried)
            reward = tree.tried[-1].reward if tree.nodes else 0.0
            path = _Path(span, actions, reward, tree.first_observation)
            self._paths.setdefault(tree.task_id, deque(maxlen=MOST_EPISODES)).append(path)
        changed: dict[str, _Recorded] = {}
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
            if episode.told.steps and offer.depth <= episode.told.steps[-1].depth:
                continue  # recorded again: the steps of an episode go ever deeper
            _add(episode, span, offer)
            changed[offer.episode] = episode
        for episode in changed.values():
            _describe(episode, _take_path(episode, self._paths))
        self._forget()

    def _forget(self) -> None:
        surplus = len(self._episodes) - MOST_EPISODES
        for oldest in list(self._episodes)[: max(0, surplus)]:
            del self._episodes[oldest]
        while len(self._paths) > MOST_EPISODES:  # of episodes whose offers never came
            del self._paths[next(iter(self._paths))]


def _add(episode: _Recorded, span: Span, offer: OfferRow) -> None:
    q_values = {one.content: one.q_value for one in offer.candidates}
    read = [q for q in q_values.values() if q is not None]
    step = RecordedStep(
        depth=offer.depth,
        taken=q_values.get(offer.taken),
        lowest=min(read, default=None),
        highest=max(read, default=None),
    )
    episode.told.steps.append(step)
    if offer.taken:  # not a step that was stopped
        episode.actions.append((offer.depth, offer.taken))
    episode.offers.append(span)


def _take_path(episode: _Recorded, paths: dict[str, deque[_Path]]) -> _Path | None:
    """The path with the episode's actions, which belongs to no other episode then."""
    of_task = paths.get(episode.told.task_id, deque())
    for path in of_task:
        fits = all(
            depth <= len(path.actions) and path.actions[depth - 1] == action for depth, action in episode.actions
        )
        if fits and path.reward == episode.told.reward:
            of_task.remove(path)
            if not of_task:
                del paths[episode.told.task_id]
            return path
    return None


def _describe(episode: _Recorded, path: _Path | None) -> None:
    actions = [action for _, action in episode.actions]
    task = path.first_observation if path else ""
    if path:
        episode.tree = path.span
        episode.told.task = task[-_TITLE_CHARACTERS:]
    text = "\n".join([episode.told.task, episode.told.task_id, *actions, task]).lower()
    episode.searched = text[:SEARCHED_CHARACTERS]

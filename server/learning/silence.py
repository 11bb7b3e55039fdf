"""Episodes of which nothing was heard for long: they end as unknown, and are no failures."""

from collections import Counter, OrderedDict
from dataclasses import dataclass, field
from typing import Final

from qguide.server.episodes.learning_part import LearningArm
from qguide.server.episodes.state import ServedEpisode
from qguide.server.learning.lines import SilentLine

_MOST_OPEN: Final = 10_000  # open episodes that are watched; of more, those that were heard least recently are not


class OpenEpisodes:
    """Open episodes, and the time of the latest word of each; of this process alone."""

    def __init__(self, silence_s: float) -> None:
        self._silence_s = silence_s
        self._heard: OrderedDict[str, tuple[float, SilentLine]] = OrderedDict()

    def heard(self, place: str, episode: ServedEpisode, *, now_s: float) -> None:
        """Note a step of an episode, or its end."""
        self._heard.pop(place, None)
        if episode.outcome is None:
            self._heard[place] = now_s, SilentLine(episode=episode.uid, arm=episode.arm)
        if len(self._heard) > _MOST_OPEN:
            self._heard.popitem(last=False)

    def ended(self, *, now_s: float) -> list[tuple[str, SilentLine]]:
        """Take out those that have been silent for too long: (place, line)."""
        found = []
        while self._heard:
            place, (at, line) = next(iter(self._heard.items()))
            if now_s - at < self._silence_s:
                break
            found.append((place, line))
            del self._heard[place]
        return found


@dataclass(slots=True)
class Silent:
    """Episodes that ended as unknown, by their arm."""

    # those whose outcome may still come, with their arm
    latest: dict[str, LearningArm | None] = field(default_factory=dict)
    older: dict[str, int] = field(default_factory=dict)  # number of the others by "trial guided"

    def add(self, line: SilentLine) -> None:
        """Count one, once."""
        self.latest[line.episode] = line.arm
        if len(self.latest) > _MOST_OPEN:
            arm = self.latest.pop(next(iter(self.latest)))
            self.older[_way(arm)] = self.older.get(_way(arm), 0) + 1

    def heard(self, episode: str) -> None:
        """Take back one whose outcome came late."""
        self.latest.pop(episode, None)

    def count(self, *, trial: int, guided: bool) -> int:
        """Number of those of a trial that were guided, or not."""
        way = f"{trial} {guided}"
        return Counter(map(_way, self.latest.values()))[way] + self.older.get(way, 0)

    @property
    def total(self) -> int:
        """Number of all."""
        return len(self.latest) + sum(self.older.values())


def _way(arm: LearningArm | None) -> str:
    return "" if arm is None else f"{arm.trial} {arm.guided}"

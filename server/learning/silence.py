"""Episodes of which nothing was heard for long: they end as unknown, and are no failures."""

from collections import OrderedDict
from typing import Final

from qguide.server.episodes.learning_part import Arm
from qguide.server.episodes.state import Episode
from qguide.server.learning.lines import SilentLine

_MOST_OPEN: Final = 10_000
"""Open episodes that are watched; of more, those that were heard least recently are not."""


class OpenEpisodes:
    """Open episodes, and the time of the latest word of each; of this process alone.

    Args:
        silence_s: time after which an episode ends as unknown.
    """

    def __init__(self, silence_s: float) -> None:
        self._silence_s = silence_s
        self._heard: OrderedDict[str, tuple[float, SilentLine]] = OrderedDict()

    def heard(self, place: str, episode: Episode, *, now_s: float) -> None:
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


class Silent:
    """Episodes that ended as unknown, by their arm."""

    def __init__(self) -> None:
        self._arms: dict[str, Arm | None] = {}

    def add(self, line: SilentLine) -> None:
        """Count one, once."""
        self._arms[line.episode] = line.arm

    def heard(self, episode: str) -> None:
        """Take back one whose outcome came late."""
        self._arms.pop(episode, None)

    def count(self, *, trial: int, guided: bool) -> int:
        """Number of those of a trial that were guided, or not."""
        arms = [arm for arm in self._arms.values() if arm is not None and arm.trial == trial]
        return sum(arm.guided == guided for arm in arms)

    @property
    def total(self) -> int:
        """Number of all."""
        return len(self._arms)

"""Numbers that are kept of episodes: outcomes and costs, success in blocks, and what was spent."""

import math
from collections import Counter, OrderedDict, deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from qguide.server.episodes.learning_part import LearningArm
from qguide.server.episodes.state import ServedEpisode
from qguide.server.learning.lines import EpisodeLine, PhaseLine, SilentLine, SpentLine

NEWEST: Final = 200
"""Episodes that are the latest."""


@dataclass(slots=True)
class Tally:
    """Number, outcomes, tokens and cost of episodes."""

    count: int = 0
    total: float = 0.0  # sum of the outcomes
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cost: float = 0.0  # of those that have one, whose number is `priced`
    priced: int = 0
    newest: deque[float] = field(default_factory=deque)

    def __post_init__(self) -> None:
        self.newest = deque(self.newest, maxlen=NEWEST)

    @property
    def mean(self) -> float:
        """Mean outcome, 0 of none."""
        return self.total / max(self.count, 1)

    @property
    def mean_prompt_tokens(self) -> float:
        """Mean tokens that an episode's requests read, 0 of none."""
        return self.prompt_tokens / max(self.count, 1)

    @property
    def mean_tokens(self) -> float:
        """Mean tokens that were generated in an episode, 0 of none."""
        return self.completion_tokens / max(self.count, 1)

    @property
    def mean_cost(self) -> float | None:
        """Mean cost of an episode; None if none is known."""
        return self.cost / self.priced if self.priced else None

    def add(self, line: EpisodeLine) -> None:
        """Count one."""
        self.count += 1
        self.total += line.outcome
        self.prompt_tokens += line.prompt_tokens
        self.completion_tokens += line.completion_tokens
        if line.cost is not None:
            self.cost += line.cost
            self.priced += 1
        self.newest.append(line.outcome)


_BLOCK: Final = 25
_MOST_BLOCKS: Final = 80
_FEWEST: Final = 15
_MOST_CHANGES: Final = 100
_Z: Final = 1.96


@dataclass(slots=True)
class Mean:
    """Mean of outcomes in [0, 1]."""

    count: int = 0
    total: float = 0.0

    def add(self, other: "Mean") -> None:
        """Count those of another."""
        self.count += other.count
        self.total += other.total

    @property
    def interval(self) -> tuple[float, float, float]:
        """Low end, mean and high end of the 95 % interval of Wilson (1927), of some outcomes.

        No outcomes from 0 to 1 of this mean vary more than 0 and 1 do, for which it is.
        """
        mean, spread = self.total / self.count, _Z**2 / self.count
        centre = mean + spread / 2
        half = _Z * math.sqrt(mean * (1 - mean) / self.count + spread / (4 * self.count))
        return (centre - half) / (1 + spread), mean, (centre + half) / (1 + spread)


@dataclass(slots=True)
class EpisodeBlock:
    """Some episodes one after the other."""

    guided: Mean = field(default_factory=Mean)
    unguided: Mean = field(default_factory=Mean)


@dataclass(slots=True)
class Curve:
    """Blocks of episodes, and the latest changes."""

    size: int = _BLOCK  # episodes of a block; it doubles when there are too many blocks
    blocks: list[EpisodeBlock] = field(default_factory=list)
    changes: list[tuple[int, PhaseLine]] = field(default_factory=list)  # (episodes before it, change)

    def add(self, number: int, line: EpisodeLine) -> None:
        """Count an episode that learning played."""
        while len(self.blocks) <= number // self.size:
            self.blocks.append(EpisodeBlock())
        if line.arm is not None:
            block = self.blocks[number // self.size]
            (block.guided if line.arm.guided else block.unguided).add(Mean(1, line.outcome))
        if len(self.blocks) > _MOST_BLOCKS:
            self._halve()

    def change(self, number: int, line: PhaseLine) -> None:
        """Note a change."""
        self.changes = [*self.changes, (number, line)][-_MOST_CHANGES:]

    def points(self, *, guided: bool) -> Iterator[tuple[int, int, Mean]]:
        """Number of the first and after the last episode, and the mean, of one way of playing.

        Blocks are put together until there are enough episodes to say something.
        """
        first, mean = 0, Mean()
        for number, block in enumerate(self.blocks):
            mean.add(block.guided if guided else block.unguided)
            if mean.count >= _FEWEST or (mean.count and number == len(self.blocks) - 1):
                yield first * self.size, (number + 1) * self.size, mean
                first, mean = number + 1, Mean()
            elif not mean.count:
                first = number + 1

    def _halve(self) -> None:
        self.size *= 2
        for kept, other in zip(self.blocks[::2], self.blocks[1::2], strict=False):
            kept.guided.add(other.guided)
            kept.unguided.add(other.unguided)
        self.blocks = self.blocks[::2]


_MINUTE_S: Final = 60
_KEPT_MINUTES: Final = 24 * 60


@dataclass(frozen=True, slots=True)
class Spent:
    """Tokens, read and generated, and their cost; 0 where it is not known."""

    tokens: int = 0
    cost: float = 0.0

    def plus(self, other: "Spent") -> "Spent":
        """Both."""
        return Spent(self.tokens + other.tokens, self.cost + other.cost)


@dataclass(slots=True)
class Spending:
    """Spending of a group's learning in the latest day, by the minute."""

    minutes: dict[int, Spent] = field(default_factory=dict)  # Unix time in minutes -> what was spent in it

    def add(self, line: SpentLine) -> None:
        """Count a line; replicas' clocks may differ a little."""
        minute = int(line.at // _MINUTE_S)
        self.minutes[minute] = self.minutes.get(minute, Spent()).plus(Spent(line.tokens, line.cost))
        oldest = max(self.minutes) - _KEPT_MINUTES
        self.minutes = {m: one for m, one in self.minutes.items() if m >= oldest}

    def since(self, at: float) -> Spent:
        """Tokens and cost since a moment, to the minute."""
        found = Spent()
        for minute, spent in self.minutes.items():
            if minute >= at // _MINUTE_S:
                found = found.plus(spent)
        return found


_MOST_OPEN: Final = 10_000  # open episodes that are watched; of more, those that were heard least recently are not


@dataclass(slots=True)
class OpenEpisodes:
    """Open episodes, and the time of the latest word of each; of this process alone."""

    silence_s: float
    _heard: OrderedDict[str, tuple[float, SilentLine]] = field(default_factory=OrderedDict)

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
            if now_s - at < self.silence_s:
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

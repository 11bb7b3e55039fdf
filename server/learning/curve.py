"""Success over episodes, guided and unguided, in blocks of which there are never many."""

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from qguide.server.learning.lines import EpisodeLine, PhaseLine

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
class Block:
    """Some episodes one after the other."""

    guided: Mean = field(default_factory=Mean)
    unguided: Mean = field(default_factory=Mean)


@dataclass(slots=True)
class Curve:
    """Blocks of episodes, and the latest changes.

    Attributes:
        size: episodes of a block; it doubles when there are too many blocks.
        changes: (episodes before it, change).
    """

    size: int = _BLOCK
    blocks: list[Block] = field(default_factory=list)
    changes: list[tuple[int, PhaseLine]] = field(default_factory=list)

    def add(self, number: int, line: EpisodeLine) -> None:
        """Count an episode that learning played."""
        while len(self.blocks) <= number // self.size:
            self.blocks.append(Block())
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

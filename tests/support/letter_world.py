"""An environment whose whole tree fits on a page: letters spell a word, and the word decides the reward."""

from collections.abc import Callable
from dataclasses import dataclass, field

from qguide.training.environment import StepResult

Rewards = Callable[[str], float]


@dataclass
class LetterWorld:
    """One word; it ends at its length, or at a letter of `ends`.

    Attributes:
        open_worlds: one entry for each episode that is begun and not closed.
    """

    reward_of: Rewards
    length: int = 3
    ends: str = ""
    word: str = ""
    open_worlds: list[int] = field(default_factory=list)

    def reset(self) -> str:
        self.open_worlds.append(1)
        return "Spell."

    def step(self, action: str) -> StepResult:
        self.word += action
        ended = len(self.word) == self.length or action in self.ends
        return StepResult(f"{self.word}.", self.reward_of(self.word) if ended else 0.0, ended)

    def close(self) -> None:
        if self.open_worlds:
            self.open_worlds.pop()

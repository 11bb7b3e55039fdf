"""Changes of the agent that a Q model has not seen: of its prompt, its tools, or its states."""

from collections import Counter
from dataclasses import dataclass, field
from typing import Final

from qguide.server.learning.lines import EpisodeLine

_IN_A_ROW: Final = 10
"""Episodes with another prompt in a row; fewer may be a trial of the operator's own."""
_COMMON: Final = 0.9
"""Share of one prompt among those of before; where prompts differ anyway, none is new."""
_WATCHED: Final = 20
_MOST_OUTSIDE: Final = 0.5


@dataclass(frozen=True, slots=True)
class Drifted:
    """A change.

    Attributes:
        since: number of the first episode after it.
    """

    since: int
    reason: str


@dataclass(slots=True)
class Drift:
    """Watches the episodes of a trial and of the guidance after it.

    Attributes:
        before: hashes of the prompts and tools of the episodes before, and their numbers.
        latest: number and hash of the latest episodes.
        outside: number and share of steps outside the domain, of the latest guided ones.
    """

    before: dict[str, int] = field(default_factory=dict)
    latest: list[tuple[int, str]] = field(default_factory=list)
    outside: list[tuple[int, float]] = field(default_factory=list)

    def add(self, number: int, line: EpisodeLine) -> None:
        """Count an episode."""
        if line.arm is not None:
            self.latest = [*self.latest, (number, line.arm.prompt)][-_IN_A_ROW:]
            if line.arm.guided:
                self.outside = [*self.outside, (number, line.outside)][-_WATCHED:]

    @property
    def drifted(self) -> Drifted | None:
        """The change that is seen; None: none."""
        return self._other_prompt() or self._other_states()

    def _other_prompt(self) -> Drifted | None:
        prompts = {prompt for _, prompt in self.latest}
        if len(self.latest) < _IN_A_ROW or len(prompts) > 1 or prompts & self.before.keys():
            return None
        before = Counter(self.before)
        [(_, most)] = before.most_common(1) or [("", 0)]
        if most == 0 or most < _COMMON * before.total():
            return None
        why = f"the system prompt or the tools of the latest {_IN_A_ROW} episodes are new"
        return Drifted(self.latest[0][0], why)

    def _other_states(self) -> Drifted | None:
        outside = sum(share for _, share in self.outside) / _WATCHED
        if len(self.outside) < _WATCHED or outside <= _MOST_OUTSIDE:
            return None
        why = f"{outside:.0%} of the steps of the latest {_WATCHED} guided episodes are outside"
        return Drifted(self.outside[0][0], f"{why} what was learned")

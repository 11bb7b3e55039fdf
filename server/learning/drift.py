"""Changes of the agent that a Q model has not seen: of its prompt, its tools, or its states."""

from collections import Counter, deque
from collections.abc import Iterable
from dataclasses import dataclass
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


class Drift:
    """Watches the episodes of a trial and of the guidance after it.

    Args:
        before: hashes of the prompts and tools of the episodes before.
    """

    def __init__(self, before: Iterable[str] = ()) -> None:
        self._before = Counter(before)
        self._latest: deque[tuple[int, str]] = deque(maxlen=_IN_A_ROW)
        self._outside: deque[tuple[int, float]] = deque(maxlen=_WATCHED)

    def add(self, number: int, line: EpisodeLine) -> None:
        """Count an episode."""
        if line.arm is not None:
            self._latest.append((number, line.arm.prompt))
            if line.arm.guided:
                self._outside.append((number, line.outside))

    @property
    def drifted(self) -> Drifted | None:
        """The change that is seen; None: none."""
        return self._other_prompt() or self._other_states()

    def _other_prompt(self) -> Drifted | None:
        prompts = {prompt for _, prompt in self._latest}
        if len(self._latest) < _IN_A_ROW or len(prompts) > 1 or prompts & set(self._before):
            return None
        [(_, most)] = self._before.most_common(1) or [("", 0)]
        if most == 0 or most < _COMMON * self._before.total():
            return None
        why = f"the system prompt or the tools of the latest {_IN_A_ROW} episodes are new"
        return Drifted(self._latest[0][0], why)

    def _other_states(self) -> Drifted | None:
        outside = sum(share for _, share in self._outside) / _WATCHED
        if len(self._outside) < _WATCHED or outside <= _MOST_OUTSIDE:
            return None
        why = f"{outside:.0%} of the steps of the latest {_WATCHED} guided episodes are outside"
        return Drifted(self._outside[0][0], f"{why} what was learned")

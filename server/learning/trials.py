"""Tests of a new version: its shadow, a trial, a challenge, and changes that it has not seen."""

from collections import Counter
from dataclasses import dataclass, field
from typing import Final

from qguide.qnet.trial_statistics import DifferenceSequence, DropDetector, HarmDetector, Interval
from qguide.server.episodes.learning_part import LearningArm, ShadowTally
from qguide.server.learning.lines import EpisodeLine
from qguide.server.learning.tally import Tally
from qguide.server.settings.learning import Rules

_IN_A_ROW: Final = 10  # episodes with another prompt in a row; fewer may be a trial of the operator's own
_COMMON: Final = 0.9  # share of one prompt among those of before; where prompts differ anyway, none is new
_WATCHED: Final = 20
_MOST_OUTSIDE: Final = 0.5
_PATIENCE: Final = 200.0  # least mean number of episodes to a rollback where guidance does no harm, and no good


@dataclass(frozen=True, slots=True)
class Drifted:
    """A change."""

    since: int  # number of the first episode after it
    reason: str


@dataclass(slots=True)
class Drift:
    """Watches the episodes of a trial and of the guidance after it."""

    # hashes of the prompts and tools of the episodes before, and their numbers
    before: dict[str, int] = field(default_factory=dict)
    latest: list[tuple[int, str]] = field(default_factory=list)
    # number and share of steps outside the domain, of the latest guided ones
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


SHARE: Final = 0.5
"""Share of the guided episodes that the newer version plays in a challenge."""
DECISIONS: Final = 20
"""Decisions in the shadow that a version has seen before it is tried."""
MOST_IN_SHADOW: Final = 50
"""Episodes for which the next fit waits, so that it does not begin the shadow anew."""


def has_been_in_shadow(tally: ShadowTally) -> bool:
    """True once enough decisions are known."""
    return tally.decisions >= DECISIONS


def refusal(tally: ShadowTally) -> str:
    """Reason why a shadow is followed by no trial; "" if one is."""
    if tally.outside > _MOST_OUTSIDE * tally.decisions:
        return f"{tally.outside} of {tally.decisions} decisions are outside what it learned"
    if tally.room == 0:
        return f"in {tally.decisions} decisions all candidates were equal, so nothing can be chosen"
    if tally.disagreed == 0:
        return f"in {tally.decisions} decisions it would have changed nothing"
    return ""


def shadow_text(tally: ShadowTally) -> str:
    """The tally in a clause."""
    return (
        f"in the shadow of {tally.decisions} decisions candidates differed in {tally.room}, it chose otherwise in "
        f"{tally.disagreed}, and {tally.outside} were outside what it learned"
    )


@dataclass(slots=True)
class Trial:
    """Guided against unguided episodes, in a trial and in the guidance after it."""

    number: int
    compared: DifferenceSequence
    drop: DropDetector  # watches the outcomes of the guided ones, anew for each version that guides
    drift: Drift
    # watches the difference while any version guides
    harm: HarmDetector = field(default_factory=lambda: HarmDetector(_PATIENCE))
    guided: Tally = field(default_factory=Tally)
    control: Tally = field(default_factory=Tally)
    both: Tally = field(default_factory=Tally)
    # (number, outcome) of those since the drop that may have begun
    watched: list[tuple[int, float]] = field(default_factory=list)
    forgotten: int = 0  # number of the watched ones that are not kept
    before: int = 0  # episodes of the trials of older versions that it follows at once

    @property
    def episodes(self) -> int:
        """Episodes since half of them are guided, by whichever version."""
        return self.before + self.both.count

    @property
    def figures(self) -> str:
        """Means of both arms, and of how many episodes each is."""
        return (
            f"guided {self.guided.mean:.0%} of {self.guided.count}, unguided "
            f"{self.control.mean:.0%} of {self.control.count}"
        )

    @classmethod
    def begun(cls, number: int, rules: Rules, drift: Drift) -> "Trial":
        """A trial without an episode."""
        alpha = rules.alpha_of(max(1, number))
        return cls(number, DifferenceSequence(alpha=alpha), DropDetector(rules.patience), drift)

    def followed(self, number: int, rules: Rules) -> "Trial":
        """A trial of a newer version after this one, in which harm is watched on."""
        begun = Trial.begun(number, rules, self.drift)
        begun.drop, begun.watched, begun.forgotten = self.drop, self.watched, self.forgotten
        begun.before = self.episodes
        return begun

    def watch_anew(self, rules: Rules) -> None:
        """Measure anew what a lucky trial gained, or another version."""
        self.drop, self.watched, self.forgotten = DropDetector(rules.patience), [], 0

    def add(self, arm: LearningArm, line: EpisodeLine, number: int, *, level: float) -> None:
        """Count an episode.

        Args:
            level: mean outcome that is no drop.
        """
        self.compared.add(line.outcome, guided=arm.guided, share=arm.share, guess=arm.guess)
        self.both.add(line)
        (self.guided if arm.guided else self.control).add(line)
        if arm.guided:
            self.drop.add(line.outcome, level=level)
            self.watched.append((number, line.outcome))
            del self.watched[: self.drop.since - self.forgotten]
            self.forgotten = self.drop.since


@dataclass(slots=True)
class Challenge:
    """Outcomes of a newer version and of the one that guides, on the guided share."""

    number: int
    version: int
    compared: DifferenceSequence
    newer: Tally = field(default_factory=Tally)
    present: Tally = field(default_factory=Tally)

    @classmethod
    def begun(cls, number: int, version: int, rules: Rules) -> "Challenge":
        """A challenge without an episode."""
        return cls(number, version, DifferenceSequence(alpha=rules.alpha_of(number)))

    @property
    def interval(self) -> Interval:
        """Newer minus present mean outcome."""
        return self.compared.interval

    @property
    def figures(self) -> str:
        """Mean outcomes of both in words."""
        newer, present = self.newer, self.present
        return f"{newer.mean:.0%} of {newer.count} against {present.mean:.0%} of {present.count} episodes"

    def add(self, line: EpisodeLine, *, newer: bool) -> None:
        """Count a guided episode."""
        (self.newer if newer else self.present).add(line)
        # The share among guided episodes, which are all that a challenge counts.
        self.compared.add(line.outcome, guided=newer, share=SHARE)

    def decided(self, *, most: int) -> bool | None:
        """True: the newer version wins; False: it does not; None: the challenge goes on.

        In the end the better mean decides. The newer version has learned from more episodes, so to wait for a proof
        would keep the worse one for longer than a wrong choice costs.
        """
        if self.interval.low > 0:
            return True
        if self.lost:
            return False
        if self.newer.count + self.present.count >= most:
            return self.newer.mean >= self.present.mean
        return None

    @property
    def lost(self) -> bool:
        """True if the newer version is shown to be worse."""
        return self.interval.high < 0

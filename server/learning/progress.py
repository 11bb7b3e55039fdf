"""State of learning, as it follows from the lines of a ledger. No clock, no files."""

from bisect import bisect_left
from collections import deque
from dataclasses import dataclass, field
from statistics import fmean
from typing import Final

from qguide.qnet.trials.difference import DifferenceSequence, Interval
from qguide.qnet.trials.drop import DropDetector
from qguide.server.episodes.state import Arm
from qguide.server.learning.drift import Drift
from qguide.server.learning.lines import (
    AnyLine,
    EpisodeLine,
    FitLine,
    Mode,
    ModeLine,
    Phase,
    PhaseLine,
)
from qguide.server.learning.rules import Rules

_NEWEST: Final = 200


@dataclass(slots=True)
class Tally:
    """Number and mean of outcomes.

    Attributes:
        tokens: drawn in all of the episodes.
        newest: the latest outcomes.
    """

    count: int = 0
    total: float = 0.0
    tokens: int = 0
    newest: deque[float] = field(default_factory=lambda: deque(maxlen=_NEWEST))

    @property
    def mean(self) -> float:
        """Mean outcome, 0 of none."""
        return self.total / self.count if self.count else 0.0

    @property
    def mean_tokens(self) -> float:
        """Mean tokens of an episode, 0 of none."""
        return self.tokens / self.count if self.count else 0.0

    def add(self, line: EpisodeLine) -> None:
        """Count one."""
        self.count += 1
        self.total += line.outcome
        self.tokens += line.completion_tokens
        self.newest.append(line.outcome)


@dataclass(frozen=True, slots=True)
class Change:
    """A change of the phase that is due; see `PhaseLine`."""

    phase: Phase
    trial: int
    since: int
    reason: str

    def line(self, *, at: float) -> PhaseLine:
        """The line that says so."""
        return PhaseLine(
            phase=self.phase, trial=self.trial, since=self.since, reason=self.reason, at=at
        )


class Progress:
    """State of learning after the lines so far.

    Attributes:
        phase: `collecting` guides nothing, `trial` half of the episodes, `guiding` most.
        trial: number of the latest trial, 0 before the first.
        since: ends of episodes before the first one that is still learned from.
        reason: of the latest change of the phase.
        at: its Unix time in seconds; 0 before the first.
        episodes: ends of episodes, all of them.
        mode: who decides on the phase and the version.
        fit: the latest fit.
        licensed: the latest fit with a licence since the phase `collecting` began.
        guided, control, in_trial: episodes since the latest trial began: guided ones, others, both.
        unguided: episodes of the agent's own choices.
    """

    def __init__(self, rules: Rules) -> None:
        self._rules = rules
        self.phase: Phase = "collecting"
        self.trial = 0
        self.since = 0
        self.reason = ""
        self.at = 0.0
        self.episodes = Tally()
        self.fit: FitLine | None = None
        self.licensed: FitLine | None = None
        self.unguided = Tally()
        self.guided = Tally()
        self.control = Tally()
        self.in_trial = Tally()
        self.mode: Mode = "auto"
        self._seen: set[str] = set()
        self._recorded: list[tuple[int, str]] = []
        self._prompts: deque[str] = deque(maxlen=_NEWEST)
        self._drift = Drift()
        self._watched: list[tuple[int, float]] = []
        self._compared = DifferenceSequence(alpha=rules.alpha_of(1))
        self._drop = DropDetector(patience=rules.patience)

    @property
    def interval(self) -> Interval:
        """Guided minus unguided outcome of the latest trial."""
        return self._compared.interval

    @property
    def share(self) -> float:
        """Share of new episodes that are guided."""
        return {"collecting": 0.0, "trial": 0.5, "guiding": 1 - self._rules.control}[self.phase]

    @property
    def learnable(self) -> int:
        """Recorded episodes that are still learned from."""
        return len(self._recorded) - bisect_left(self._recorded, (self.since, ""))

    @property
    def version(self) -> int | None:
        """The version that guides; None: none."""
        return self.licensed.version if self.licensed and self.phase != "collecting" else None

    def counted(self, episode: str) -> bool:
        """True if the episode of this id has its line."""
        return bool(episode) and episode in self._seen

    def newest(self, most: int) -> tuple[str, ...]:
        """Ids of the newest episodes that are still learned from."""
        begin = max(len(self._recorded) - most, bisect_left(self._recorded, (self.since, "")))
        return tuple(episode for _, episode in self._recorded[begin:])

    @property
    def fit_due(self) -> bool:
        """True if enough episodes have ended since the latest fit began."""
        return self.next_fit_in == 0 and self.learnable > 0

    @property
    def next_fit_in(self) -> int:
        """Ends of episodes until the next fit."""
        begun = max(self.fit.episodes if self.fit else 0, self.since)
        return max(0, begun + self._rules.every - self.episodes.count)

    def apply(self, line: AnyLine) -> None:
        """Go on by one line."""
        match line:
            case EpisodeLine():
                self._end(line)
            case FitLine():
                self.fit = line
                if line.licensed and line.episodes >= self.since and self.mode != "pinned":
                    self.licensed = line
            case PhaseLine():
                self._enter(line)
            case ModeLine():
                self.mode = line.mode

    def due(self) -> Change | None:
        """The change of the phase that follows from the lines so far; None: none."""
        if self.mode != "auto":
            return None
        drifted = self._drift.drifted if self.phase != "collecting" else None
        if drifted is not None:
            why = f"rolled back: {drifted.reason}"
            return Change("collecting", self.trial, drifted.since, why)
        match self.phase:
            case "collecting":
                return self._begin_trial()
            case "trial":
                return self._end_trial()
            case "guiding":
                return self._worse("guiding")

    def _begin_trial(self) -> Change | None:
        if self.licensed is None or self.licensed is not self.fit:
            return None
        why = f"the fit of {self.licensed.episodes} episodes has a licence"
        return Change("trial", self.trial + 1, self.since, why)

    def _end_trial(self) -> Change | None:
        if self.interval.low > 0:
            return Change("guiding", self.trial, self.since, f"guidance helps: {self._figures}")
        if (worse := self._worse("in the trial")) is not None:
            return worse
        if self.in_trial.count >= self._rules.most_in_trial:
            why = f"{self.in_trial.count} episodes of the trial show no difference: {self._figures}"
            return Change("collecting", self.trial, self.since, why)
        return None

    def _worse(self, where: str) -> Change | None:
        if self.interval.high < 0:
            why = f"guidance harms: {self._figures}"
            return self._rolled_back(self.episodes.count, f"{where}: {why}")
        if self._drop.dropped:
            fallen = self._watched[self._drop.since :]
            had = f"{fmean(outcome for _, outcome in fallen):.0%}"
            why = f"the latest {len(fallen)} guided episodes had {had}; {self._figures}"
            return self._rolled_back(fallen[0][0], f"{where}: {why}")
        return None

    def _rolled_back(self, since: int, why: str) -> Change:
        """The end of guidance; what a trial learned from stays, what a change outdated does not."""
        kept = since if self.phase == "guiding" else self.since
        return Change("collecting", self.trial, kept, f"rolled back {why}")

    @property
    def _figures(self) -> str:
        return (
            f"guided {self.guided.mean:.0%} of {self.guided.count}, unguided "
            f"{fmean(self.unguided.newest or [0.0]):.0%} of {len(self.unguided.newest)}"
        )

    def _end(self, line: EpisodeLine) -> None:
        if self.counted(line.episode):
            return
        self._seen.add(line.episode)
        number = self.episodes.count
        self.episodes.add(line)
        if line.recorded:
            self._recorded.append((number, line.episode))
        arm = line.arm
        if arm is None:
            return
        self._prompts.append(arm.prompt)
        self._drift.add(number, line)
        if arm.trial == self.trial and self.phase != "collecting" and 0 < arm.share < 1:
            self._compare(arm, line, number)
        elif not arm.guided:
            self.unguided.add(line)

    def _compare(self, arm: Arm, line: EpisodeLine, number: int) -> None:
        self._compared.add(line.outcome, guided=arm.guided, share=arm.share)
        self.in_trial.add(line)
        if arm.guided:
            self._drop.add(line.outcome, level=self._level)
            self.guided.add(line)
            self._watched.append((number, line.outcome))
        else:
            self.control.add(line)
            self.unguided.add(line)

    @property
    def _level(self) -> float:
        """Mean outcome that is no drop: the unguided one, and while guiding half of the gain."""
        unguided = fmean(self.unguided.newest) if self.unguided.newest else 0.0
        if self.phase != "guiding":
            return unguided
        return max(unguided, (unguided + self.guided.mean) / 2)

    def _enter(self, line: PhaseLine) -> None:
        if line.phase == "trial":
            self.guided, self.control, self.in_trial = Tally(), Tally(), Tally()
            self._watched, self._drift = [], Drift(self._prompts)
            self._compared = DifferenceSequence(alpha=self._rules.alpha_of(line.trial))
            self._drop = DropDetector(patience=self._rules.patience)
        elif line.phase == "guiding":
            # What a lucky trial gained is measured anew.
            self._drop = DropDetector(patience=self._rules.patience)
            self._watched = []
        elif line.phase == "collecting":
            self.licensed = None
        self.phase, self.trial, self.since = line.phase, line.trial, line.since
        self.reason, self.at = line.reason, line.at

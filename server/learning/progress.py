"""State of learning, as it follows from the lines of a ledger. No clock, no files."""

from bisect import bisect_left, insort
from collections import Counter, deque
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any, Final

from pydantic import TypeAdapter

from qguide.qnet.policies.pool import PolicyRecord
from qguide.qnet.trial_statistics import Interval, TaskMeans
from qguide.server.episodes.learning_part import ShadowTally
from qguide.server.learning import trials
from qguide.server.learning.lines import (
    AnyLine,
    EpisodeLine,
    FitLine,
    Mode,
    ModeLine,
    Phase,
    PhaseLine,
    SilentLine,
    SpentLine,
)
from qguide.server.learning.tally import NEWEST, Curve, Silent, Spending, Tally
from qguide.server.learning.trials import SHARE, Challenge, Drift, Trial
from qguide.server.settings.learning import Rules

MOST_EPISODES: Final = 2_000
"""The newest that a fit learns from: more take minutes, and are of an agent that has changed."""
MOST_KNOWN: Final = 20_000
"""The newest episodes that are not counted again."""


@dataclass(slots=True)
class Progress:
    """State of learning after the lines so far; its fields are all of it."""

    rules: Rules
    phase: Phase = "collecting"  # `collecting` guides nothing, `trial` half of the episodes, `guiding` most
    since: int = 0
    reason: str = ""
    at: float = 0.0
    note: str = ""  # of the latest change of another kind since then; "" without one
    version: int | None = None
    # the latest trial, and the guidance after it
    latest: Trial = field(default_factory=lambda: Trial.begun(0, Rules(), Drift()))
    challenge: Challenge | None = None
    challenges: int = 0
    episodes: Tally = field(default_factory=Tally)  # ends of episodes, all of them
    cut: int = 0  # those of them whose rewards lay outside 0 to 1
    mode: Mode = "auto"
    fit: FitLine | None = None
    licensed: FitLine | None = None  # the latest fit that may be tried since the phase `collecting` began
    shadow: ShadowTally | None = None
    refused: int = 0
    unguided: Tally = field(default_factory=Tally)  # episodes of the agent's own choices
    silent: Silent = field(default_factory=Silent)
    spending: Spending = field(default_factory=Spending)
    curve: Curve = field(default_factory=Curve)
    # ids of the newest episodes, with the number of those that were not recorded
    known: dict[str, int | None] = field(default_factory=dict)
    recorded: list[tuple[int, str]] = field(default_factory=list)  # (number, id) of the newest that can be learned from
    prompts: deque[str] = field(default_factory=deque)
    tasks: TaskMeans = field(default_factory=TaskMeans)  # outcomes by task of the episodes since learning began
    policies: dict[str, PolicyRecord] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.prompts = deque(self.prompts, maxlen=NEWEST)

    @property
    def trial(self) -> int:
        """Number of the latest trial, 0 before the first."""
        return self.latest.number

    @property
    def interval(self) -> Interval:
        """Guided minus unguided outcome of the latest trial."""
        return self.latest.compared.interval

    @property
    def more_to_show_a_gain(self) -> float:
        """About how many more episodes the trial needs to show a gain; infinite without one."""
        return self.latest.compared.more_to_show_a_gain

    @property
    def share(self) -> float:
        """Share of new episodes that are guided."""
        return {"collecting": 0.0, "trial": 0.5, "guiding": 1 - self.rules.control}[self.phase]

    @property
    def learnable(self) -> int:
        """Recorded episodes that are still learned from."""
        return len(self.recorded) - bisect_left(self.recorded, (self.since, ""))

    @property
    def challenger_share(self) -> float:
        """Share of new episodes that the challenger guides."""
        return SHARE * self.share if self.challenge and self.mode == "auto" else 0.0

    @property
    def candidate(self) -> FitLine | None:
        """The licensed version that may be tried next; None: none."""
        tried = {self.version, self.challenge.version if self.challenge else None}
        fit = self.licensed
        if fit is None or fit.version in tried or fit.version <= self.refused:
            return None
        return fit if self.phase != "collecting" or fit is self.fit else None

    @property
    def shadowed(self) -> ShadowTally | None:
        """Decisions in the shadow of the candidate; None without a candidate."""
        if self.candidate is None:
            return None
        version = self.candidate.version
        same = self.shadow is not None and self.shadow.version == version
        return self.shadow if same else ShadowTally(version=version)

    @property
    def served(self) -> set[int]:
        """Versions that episodes need: those that guide, and the one in the shadow."""
        versions = (
            self.version,
            self.challenge.version if self.challenge else None,
            self.candidate.version if self.candidate else None,
        )
        return {version for version in versions if version is not None}

    def counted(self, episode: str) -> bool:
        """True if the episode of this id has its line."""
        return episode in self.known

    def has(self, line: EpisodeLine) -> bool:
        """True if the line would change nothing; a recording may come later than the outcome."""
        return self.counted(line.episode) and not (line.recorded and self.known[line.episode] is not None)

    def newest(self) -> tuple[str, ...]:
        """Ids of the newest episodes that are still learned from."""
        return tuple(episode for number, episode in self.recorded if number >= self.since)

    @property
    def fit_due(self) -> bool:
        """True if enough episodes have ended since the latest fit began.

        It waits for the shadow of the latest fit, which a newer version would begin anew.
        """
        waits = (
            self.shadowed is not None
            and self.fit is not None
            and not trials.has_been_in_shadow(self.shadowed)
            and self.episodes.count < self.fit.episodes + trials.MOST_IN_SHADOW
        )
        return self.next_fit_in == 0 and self.learnable > 0 and not waits

    @property
    def next_fit_in(self) -> int:
        """Ends of episodes until the next fit."""
        begun = max(self.fit.episodes if self.fit else 0, self.since)
        return max(0, begun + self.rules.every - self.episodes.count)

    def apply(self, line: AnyLine) -> None:
        """Go on by one line."""
        match line:
            case EpisodeLine():
                self._end(line)
            case SilentLine():
                if not self.counted(line.episode):
                    self.silent.add(line)
            case FitLine():
                self.fit = line
                if line.licensed and line.episodes >= self.since and self.mode != "pinned":
                    self.licensed = line
            case PhaseLine():
                self._enter(line)
            case ModeLine():
                self.mode = line.mode
            case SpentLine():
                self.spending.add(line)

    def _end(self, line: EpisodeLine) -> None:
        if self.has(line):
            return
        late = self.known.get(line.episode)
        number = self.episodes.count if late is None else late
        if line.episode:
            self.known[line.episode] = None if line.recorded else number
        if line.recorded:
            insort(self.recorded, (number, line.episode))
            del self.recorded[:-MOST_EPISODES]
        if late is not None:
            return
        if len(self.known) > MOST_KNOWN:
            del self.known[next(iter(self.known))]
        self.silent.heard(line.episode)
        self.episodes.add(line)
        self.cut += line.cut
        for name, steps in line.policies.items():
            before = self.policies.get(name, PolicyRecord())
            share = steps / sum(line.policies.values())
            self.policies[name] = before.plus(line.outcome, share)
        self.curve.add(number, line)
        if line.shadow is not None:
            self.shadow = line.shadow.plus(self.shadow)
        arm = line.arm
        if arm is None:
            return
        self.prompts.append(arm.prompt)
        if arm.task:
            self.tasks.add(arm.task, line.outcome)
        self.latest.drift.add(number, line)
        if self.challenge is not None and arm.guided and arm.challenge == self.challenge.number:
            self.challenge.add(line, newer=arm.challenger)
        if arm.trial == self.trial and self.phase == "guiding" and 0 < arm.share < 1:
            share = 1 - self.rules.control if arm.challenge else arm.share
            self.latest.harm.add(line.outcome, guided=arm.guided, share=share, number=number)
        if arm.challenger:
            return
        # Not at a share of 0 or 1: the statistics divide by the probability of either arm.
        tried = arm.trial == self.trial and self.phase != "collecting" and 0 < arm.share < 1
        if tried:
            self.latest.add(arm, line, number, level=self._level)
        if not arm.guided:
            self.unguided.add(line)

    @property
    def _level(self) -> float:
        """Mean outcome that is no drop: the unguided one, and while guiding half of the gain."""
        unguided = fmean(self.unguided.newest) if self.unguided.newest else 0.0
        if self.phase != "guiding":
            return unguided
        # Half of the gain: all of it would alarm wherever a trial was won with luck, and none of it only once guidance
        # does harm.
        return max(unguided, (unguided + self.latest.guided.mean) / 2)

    def _enter(self, line: PhaseLine) -> None:
        self.curve.change(self.episodes.count, line)
        known = (self.phase, self.trial) == (line.phase, line.trial)
        if line.event == "trial_begun" and self.phase == "trial":
            self.latest = self.latest.followed(line.trial, self.rules)
        elif line.event == "trial_begun":
            self.latest = Trial.begun(line.trial, self.rules, Drift(Counter(self.prompts)))
        if line.event in ("guiding", "challenge_decided"):
            self.latest.watch_anew(self.rules)
        if line.phase == "collecting" and self.phase != "collecting":
            self.licensed, self.shadow = None, None
        if line.challenger is None:
            self.challenge = None
        elif self.challenge is None:
            self.challenge = Challenge.begun(line.challenge, line.challenger, self.rules)
        else:
            self.challenge.version = line.challenger
        if known:
            self.note = line.reason
        else:
            self.reason, self.at, self.note = line.reason, line.at, ""
        self.phase, self.since = line.phase, line.since
        self.version, self.challenges, self.refused = line.version, line.challenge, line.refused


_STATE: Final = TypeAdapter(Progress)


def state_in(progress: Progress) -> dict[str, Any]:
    """The whole state as JSON."""
    found: dict[str, Any] = _STATE.dump_python(progress, mode="json")
    return found


def progress_of(state: dict[str, Any], rules: Rules) -> Progress:
    """The progress of a saved state, with the rules of today."""
    progress = _STATE.validate_python(state)
    progress.rules = rules
    return progress

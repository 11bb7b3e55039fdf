"""State of learning, as it follows from the lines of a ledger. No clock, no files."""

from bisect import bisect_left
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from statistics import fmean

from qguide.qnet.trials.difference import DifferenceSequence, Interval
from qguide.qnet.trials.drop import DropDetector
from qguide.server.episodes.learning_part import Arm, ShadowTally
from qguide.server.learning import shadow
from qguide.server.learning.challenge import SHARE, Challenge
from qguide.server.learning.change import Change
from qguide.server.learning.drift import Drift
from qguide.server.learning.lines import (
    AnyLine,
    EpisodeLine,
    Event,
    FitLine,
    Mode,
    ModeLine,
    Phase,
    PhaseLine,
    SilentLine,
)
from qguide.server.learning.rules import Rules
from qguide.server.learning.silence import Silent
from qguide.server.learning.tally import NEWEST, Tally


class Progress:
    """State of learning after the lines so far.

    Attributes:
        phase: `collecting` guides nothing, `trial` half of the episodes, `guiding` most.
        trial: number of the latest trial, 0 before the first.
        since: ends of episodes before the first one that is still learned from.
        reason: of the latest change of the phase.
        at: its Unix time in seconds; 0 before the first.
        note: of the latest change of another kind since then; "" without one.
        version: the version that guides; None: none.
        challenge: the challenge that goes on; None: none.
        challenges: number of challenges that have begun.
        episodes: ends of episodes, all of them.
        mode: who decides on the phase and the version.
        fit: the latest fit.
        licensed: the latest fit with a licence since the phase `collecting` began.
        shadow: what it would have chosen; None before its first decision.
        refused: versions up to this one are not tried.
        guided, control, in_trial: episodes since the latest trial began: guided ones, others, both.
        unguided: episodes of the agent's own choices.
        silent: those that ended as unknown.
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
        self.shadow: ShadowTally | None = None
        self.refused = 0
        self.note = ""
        self.version: int | None = None
        self.challenge: Challenge | None = None
        self.challenges = 0
        self.unguided = Tally()
        self.guided = Tally()
        self.control = Tally()
        self.in_trial = Tally()
        self.mode: Mode = "auto"
        self.silent = Silent()
        self._seen: set[str] = set()
        self._recorded: list[tuple[int, str]] = []
        self._prompts: deque[str] = deque(maxlen=NEWEST)
        self._drift = Drift()
        self._watched: list[tuple[int, float]] = []
        self._compared = DifferenceSequence(alpha=rules.alpha_of(1))
        self._drop = DropDetector(patience=rules.patience)

    @property
    def interval(self) -> Interval:
        """Guided minus unguided outcome of the latest trial."""
        return self._compared.interval

    @property
    def more_to_show_a_gain(self) -> float:
        """About how many more episodes the trial needs to show a gain; infinite without one."""
        return self._compared.more_to_show_a_gain

    @property
    def share(self) -> float:
        """Share of new episodes that are guided."""
        return {"collecting": 0.0, "trial": 0.5, "guiding": 1 - self._rules.control}[self.phase]

    @property
    def learnable(self) -> int:
        """Recorded episodes that are still learned from."""
        return len(self._recorded) - bisect_left(self._recorded, (self.since, ""))

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
        return bool(episode) and episode in self._seen

    def newest(self, most: int) -> tuple[str, ...]:
        """Ids of the newest episodes that are still learned from."""
        begin = max(len(self._recorded) - most, bisect_left(self._recorded, (self.since, "")))
        return tuple(episode for _, episode in self._recorded[begin:])

    @property
    def fit_due(self) -> bool:
        """True if enough episodes have ended since the latest fit began.

        It waits for the shadow of the latest fit, which a newer version would begin anew.
        """
        waits = (
            self.shadowed is not None
            and self.fit is not None
            and not shadow.ended(self.shadowed)
            and self.episodes.count < self.fit.episodes + shadow.MOST_EPISODES
        )
        return self.next_fit_in == 0 and self.learnable > 0 and not waits

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

    def due(self) -> Change | None:
        """The change that follows from the lines so far; None: none."""
        if self.mode != "auto":
            return None
        drifted = self._drift.drifted if self.phase != "collecting" else None
        if drifted is not None:
            return self.back(f"rolled back: {drifted.reason}", since=drifted.since)
        match self.phase:
            case "collecting":
                return self._newer(self._begun)
            case "trial":
                return self._end_trial() or self._newer(self._followed)
            case "guiding":
                worse = self._worse("guiding")
                return worse or self._end_challenge() or self._newer(self._challenged)

    def now(self, event: Event, reason: str) -> Change:
        """The present state, with another reason."""
        return Change(
            event=event,
            phase=self.phase,
            trial=self.trial,
            since=self.since,
            reason=reason,
            version=self.version,
            challenge=self.challenges,
            challenger=self.challenge.version if self.challenge else None,
            refused=self.refused,
        )

    def back(
        self, reason: str, *, since: int | None = None, event: Event = "rolled_back"
    ) -> Change:
        """The end of a trial or of guidance."""
        return replace(
            self.now(event, reason),
            phase="collecting",
            since=self.since if since is None else since,
            version=None,
            challenger=None,
        )

    def promoted(self, version: int, reason: str) -> Change:
        """The change by which a version guides."""
        return replace(
            self.now("guiding", reason), phase="guiding", version=version, challenger=None
        )

    def begun(self, version: int, reason: str) -> Change:
        """The beginning of a trial."""
        trial = replace(self.now("trial_begun", reason), phase="trial", version=version)
        return replace(trial, trial=self.trial + 1)

    def _newer(self, tried: Callable[[ShadowTally], Change]) -> Change | None:
        """The change that follows the shadow of a newer version; None while it goes on."""
        tally = self.shadowed
        if tally is None or not shadow.ended(tally):
            return None
        if why := shadow.refusal(tally):
            passed = self.now("passed_over", f"version {tally.version} is not tried: {why}")
            return replace(passed, refused=tally.version)
        return tried(tally)

    def _begun(self, tally: ShadowTally) -> Change:
        episodes = self.licensed.episodes if self.licensed else 0
        why = f"the fit of {episodes} episodes has a licence; {shadow.described(tally)}"
        return self.begun(tally.version, why)

    def _followed(self, tally: ShadowTally) -> Change:
        why = f"the trial goes on with version {tally.version}; {shadow.described(tally)}"
        return replace(self.now("newer_version", why), version=tally.version)

    def _challenged(self, tally: ShadowTally) -> Change:
        said = shadow.described(tally)
        if self.challenge is not None:
            why = f"the challenge goes on with version {tally.version}; {said}"
            return replace(self.now("newer_version", why), challenger=tally.version)
        why = f"version {tally.version} is tried against version {self.version}; {said}"
        change = replace(self.now("challenge_begun", why), challenger=tally.version)
        return replace(change, challenge=self.challenges + 1)

    def _end_trial(self) -> Change | None:
        if self.interval.low > 0 and self.version is not None:
            return self.promoted(self.version, f"guidance helps: {self._figures}")
        if (worse := self._worse("in the trial")) is not None:
            return worse
        if self.in_trial.count >= self._rules.most_in_trial:
            why = f"{self.in_trial.count} episodes of the trial show no difference: {self._figures}"
            return self.back(why, event="trial_ended")
        return None

    def _end_challenge(self) -> Change | None:
        challenge = self.challenge
        wins = challenge.decided() if challenge else None
        if challenge is None or wins is None:
            return None
        newer, figures = f"version {challenge.version}", challenge.figures
        if wins:
            why = f"{newer} replaces version {self.version}: {figures}"
        elif challenge.lost:
            why = f"{newer} is worse than version {self.version}, which stays: {figures}"
        else:
            why = f"{newer} is not shown to be better than version {self.version}: {figures}"
        ended = replace(self.now("challenge_decided", why), challenger=None)
        return replace(
            ended,
            version=challenge.version if wins else self.version,
            refused=self.refused if wins else max(self.refused, challenge.version),
        )

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
        return self.back(f"rolled back {why}", since=kept)

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
        self.silent.heard(line.episode)
        number = self.episodes.count
        self.episodes.add(line)
        if line.recorded:
            self._recorded.append((number, line.episode))
        if line.shadow is not None:
            self.shadow = line.shadow.plus(self.shadow)
        arm = line.arm
        if arm is None:
            return
        self._prompts.append(arm.prompt)
        self._drift.add(number, line)
        self._add_to_challenge(arm, line)
        if arm.challenger:
            return
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

    def _add_to_challenge(self, arm: Arm, line: EpisodeLine) -> None:
        if self.challenge is not None and arm.guided and arm.challenge == self.challenge.number:
            self.challenge.add(line, newer=arm.challenger)

    @property
    def _level(self) -> float:
        """Mean outcome that is no drop: the unguided one, and while guiding half of the gain."""
        unguided = fmean(self.unguided.newest) if self.unguided.newest else 0.0
        if self.phase != "guiding":
            return unguided
        return max(unguided, (unguided + self.guided.mean) / 2)

    def _enter(self, line: PhaseLine) -> None:
        if line.event == "trial_begun":
            self.guided, self.control, self.in_trial = Tally(), Tally(), Tally()
            self._watched, self._drift = [], Drift(self._prompts)
            self._compared = DifferenceSequence(alpha=self._rules.alpha_of(line.trial))
        if line.event in ("trial_begun", "guiding", "challenge_decided"):
            # What a lucky trial gained is measured anew, and so is a new version.
            self._drop = DropDetector(patience=self._rules.patience)
            self._watched = []
        if line.phase == "collecting" and self.phase != "collecting":
            self.licensed, self.shadow = None, None
        if line.challenger is None:
            self.challenge = None
        elif self.challenge is None:
            self.challenge = Challenge(line.challenge, line.challenger, self._rules)
        else:
            self.challenge.version = line.challenger
        if (line.phase, line.trial) != (self.phase, self.trial):
            self.reason, self.at, self.note = line.reason, line.at, ""
        else:
            self.note = line.reason
        self.phase, self.trial, self.since = line.phase, line.trial, line.since
        self.version, self.challenges, self.refused = line.version, line.challenge, line.refused

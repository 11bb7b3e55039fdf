"""Changes of the phase, and of the versions, that follow from the state of learning."""

import math
from collections.abc import Callable
from statistics import fmean
from typing import Any

from qguide.server.episodes.learning_part import ShadowTally
from qguide.server.learning import trials
from qguide.server.learning.lines import Event, PhaseLine
from qguide.server.learning.progress import Progress


def due(of: Progress) -> PhaseLine | None:
    """The change that follows from the lines so far; None: none."""
    if of.mode != "auto":
        return None
    drifted = of.latest.drift.drifted if of.phase != "collecting" else None
    if drifted is not None:
        return back(of, f"rolled back: {drifted.reason}", since=drifted.since)
    match of.phase:
        case "collecting":
            return _newer(of, _begun)
        case "trial":
            return _end_trial(of) or _newer(of, _followed)
        case "guiding":
            worse = _worse(of, "guiding")
            return worse or _end_challenge(of) or _newer(of, _challenged)


def _changed(of: Progress, event: Event, reason: str, **changes: Any) -> PhaseLine:
    present: dict[str, Any] = {
        "phase": of.phase,
        "trial": of.trial,
        "since": of.since,
        "version": of.version,
        "challenge": of.challenges,
        "challenger": of.challenge.version if of.challenge else None,
        "refused": of.refused,
    }
    return PhaseLine(event=event, reason=reason, **present | changes)


def back(of: Progress, reason: str, *, since: int | None = None, event: Event = "rolled_back") -> PhaseLine:
    """The end of a trial or of guidance."""
    since = of.since if since is None else since
    return _changed(of, event, reason, phase="collecting", since=since, version=None, challenger=None)


def promoted(of: Progress, version: int, reason: str) -> PhaseLine:
    """The change by which a version guides."""
    return _changed(of, "guiding", reason, phase="guiding", version=version, challenger=None)


def begun(of: Progress, version: int, reason: str) -> PhaseLine:
    """The beginning of a trial."""
    return _changed(of, "trial_begun", reason, phase="trial", version=version, trial=of.trial + 1)


def _newer(of: Progress, tried: Callable[[Progress, ShadowTally], PhaseLine]) -> PhaseLine | None:
    """The change that follows the shadow of a newer version; None while it goes on."""
    tally = of.shadowed
    if tally is None or not trials.has_been_in_shadow(tally):
        return None
    if why := trials.refusal(tally):
        why = f"version {tally.version} is not tried: {why}"
        return _changed(of, "passed_over", why, refused=tally.version)
    return tried(of, tally)


def _begun(of: Progress, tally: ShadowTally) -> PhaseLine:
    episodes = of.licensed.episodes if of.licensed else 0
    why = f"the fit of {episodes} episodes may be tried; {trials.shadow_text(tally)}"
    return begun(of, tally.version, why)


def _followed(of: Progress, tally: ShadowTally) -> PhaseLine:
    """A newer version goes on with the trial, or begins another one.

    Another one is harder to win, by the level of its interval, and is worth it where the versions before have lost more
    than that.
    """
    harder = math.log(of.rules.alpha_of(of.trial) / of.rules.alpha_of(of.trial + 1))
    if of.latest.compared.fortune < -harder:
        why = f"version {tally.version} has a trial of its own; {trials.shadow_text(tally)}"
        return begun(of, tally.version, why)
    why = f"the trial goes on with version {tally.version}; {trials.shadow_text(tally)}"
    return _changed(of, "newer_version", why, version=tally.version)


def _challenged(of: Progress, tally: ShadowTally) -> PhaseLine:
    said = trials.shadow_text(tally)
    if of.challenge is not None:
        why = f"the challenge goes on with version {tally.version}; {said}"
        return _changed(of, "newer_version", why, challenger=tally.version)
    why = f"version {tally.version} is tried against version {of.version}; {said}"
    return _changed(of, "challenge_begun", why, challenger=tally.version, challenge=of.challenges + 1)


def _end_trial(of: Progress) -> PhaseLine | None:
    if of.interval.low > 0 and of.version is not None:
        return promoted(of, of.version, f"guidance helps: {of.latest.figures}")
    if (worse := _worse(of, "in the trial")) is not None:
        return worse
    # A version has had its episodes and shows no gain soon, or all have had theirs.
    count, most = of.latest.both.count, of.rules.most_in_trial
    late = count >= most and count + of.more_to_show_a_gain > 2 * most
    if late or of.latest.episodes >= 2 * most:
        why = f"{of.latest.episodes} episodes of the trial show no difference: {of.latest.figures}"
        return back(of, why, event="trial_ended")
    return None


def _end_challenge(of: Progress) -> PhaseLine | None:
    challenge = of.challenge
    wins = challenge.decided(most=of.rules.most_in_challenge) if challenge else None
    if challenge is None or wins is None:
        return None
    newer, figures = f"version {challenge.version}", challenge.figures
    if wins:
        why = f"{newer} replaces version {of.version}: {figures}"
    elif challenge.lost:
        why = f"{newer} is worse than version {of.version}, which stays: {figures}"
    else:
        why = f"{newer} is not better than version {of.version}, which stays: {figures}"
    return _changed(
        of,
        "challenge_decided",
        why,
        challenger=None,
        version=challenge.version if wins else of.version,
        refused=of.refused if wins else max(of.refused, challenge.version),
    )


def _worse(of: Progress, where: str) -> PhaseLine | None:
    if of.interval.high < 0:
        why = f"guidance harms: {of.latest.figures}"
        return _rolled_back(of, of.episodes.count, f"{where}: {why}")
    harm = of.latest.harm
    if of.phase == "guiding" and harm.alarmed:
        why = f"since episode {harm.since + 1:,} guidance harms: {harm.figures}"
        return _rolled_back(of, harm.since, f"{where}: {why}")
    if of.latest.drop.alarmed:
        fallen = of.latest.watched
        had = f"{fmean(outcome for _, outcome in fallen):.0%}"
        alone = of.unguided.newest or [0.0]
        before = f"{of.latest.figures}; the latest {len(alone)} unguided ones {fmean(alone):.0%}"
        why = f"the latest {len(fallen)} guided episodes had {had}; {before}"
        return _rolled_back(of, fallen[0][0], f"{where}: {why}")
    return None


def _rolled_back(of: Progress, since: int, why: str) -> PhaseLine:
    """The end of guidance; what a trial learned from stays, what a change outdated does not."""
    kept = since if of.phase == "guiding" else of.since
    return back(of, f"rolled back {why}", since=kept)

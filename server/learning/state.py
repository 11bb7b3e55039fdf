"""State of learning as it is told: GET /v1/learning."""

import math
from datetime import UTC, datetime

from pydantic import Field

from qguide.qnet.trials.difference import Interval
from qguide.server.learning.lines import Mode, Phase
from qguide.server.learning.progress import Progress
from qguide.server.learning.rules import Rules
from qguide.server.learning.shadow import DECISIONS
from qguide.server.learning.tally import Tally
from qguide.server.messages.schemas import Body


class ArmState(Body):
    """Episodes that were played in one way."""

    episodes: int
    mean: float = Field(description="mean outcome, from 0 to 1; 0 of none")
    tokens: float = Field(description="mean completion tokens of an episode, candidates included")
    unknown: int = Field(
        default=0, description="further ones that fell silent: no outcome, so no part of the mean"
    )


class DifferenceState(Body):
    """Guided minus unguided mean outcome, and its interval, which may be looked at at any time."""

    low: float
    estimate: float = Field(
        description="of the episodes' outcomes, each weighed by 1 / the probability of its arm. In "
        "a trial that is the difference of the two means; while guiding, when the probability is "
        "another, it need not be"
    )
    high: float


class FitState(Body):
    """The latest fit."""

    version: int
    episodes: int = Field(description="ends of episodes when it began")
    licensed: bool = Field(description="it may be tried")
    reason: str = Field(description="of the licence, or of the failure")
    missing: str = Field(description='what a licence lacks, and what helps; "" if nothing is known')


class ShadowState(Body):
    """Decisions that a version has seen before it is tried."""

    version: int
    decisions: int
    needed: int = Field(default=DECISIONS, description="decisions before it is tried")
    room: int = Field(description="decisions in which the candidates differed")
    outside: int = Field(description="decisions outside what it learned")
    disagreed: int = Field(description="decisions in which it would have chosen otherwise")


class ChallengeState(Body):
    """A newer version that is tried against the one that guides."""

    number: int
    version: int
    newer: ArmState
    present: ArmState = Field(description="the version that guides, since the challenge began")
    difference: DifferenceState = Field(description="newer minus present mean outcome")


class LearningState(Body):
    """State of learning for a key, or for keys that the operator groups."""

    group: str = Field(description='the key; "+name" of a group, "_" of a server without keys')
    phase: Phase
    mode: Mode = Field(description="who decides: the figures (auto), or the operator")
    episodes: int = Field(description="with an outcome")
    successful: float = Field(description="mean outcome of all of them, from 0 to 1")
    learnable: int = Field(description="recorded, and still learned from")
    trial: int = Field(description="number of the latest trial; 0 before the first")
    share: float = Field(description="of new episodes that are guided")
    guided: ArmState = Field(description="since the latest trial began")
    unguided: ArmState = Field(
        description="since the latest trial began; while collecting, of all episodes"
    )
    difference: DifferenceState
    extra_tokens: float = Field(description="mean tokens of a guided minus an unguided episode")
    version: int | None = Field(description="the version that guides")
    shadow: ShadowState | None = Field(description="the version that may be tried next")
    challenge: ChallengeState | None
    fit: FitState | None
    next_fit_in: int = Field(description="episodes until the next fit; 0: it runs, or is about to")
    reason: str = Field(description="of the latest change of the phase")
    at: float = Field(description="its Unix time in seconds; 0 before the first")
    sentence: str


def state_of(
    group: str, progress: Progress, rules: Rules, *, share: float | None = None
) -> LearningState:
    """The state of a group in figures and in a sentence.

    Args:
        share: of new episodes that are guided here; None is what the phase says. It is 0 where the
            version could not be loaded.
    """
    share = progress.share if share is None else share
    lost = progress.version is not None and not share
    unloaded = (
        f"; version {progress.version} cannot be loaded, so nothing is guided" if lost else ""
    )
    collecting = progress.phase == "collecting"
    unguided = progress.unguided if collecting else progress.control
    extra = progress.guided.mean_tokens - unguided.mean_tokens
    interval, fit = progress.interval, progress.fit
    return LearningState(
        group=group,
        phase=progress.phase,
        mode=progress.mode,
        episodes=progress.episodes.count,
        successful=progress.episodes.mean,
        learnable=progress.learnable,
        trial=progress.trial,
        share=share,
        guided=_arm(progress.guided, progress.silent.count(trial=progress.trial, guided=True)),
        unguided=_arm(unguided, progress.silent.count(trial=progress.trial, guided=False)),
        difference=_difference(interval),
        extra_tokens=extra if progress.guided.count and unguided.count else 0.0,
        version=progress.version,
        shadow=_shadow(progress),
        challenge=_challenge(progress),
        fit=FitState(
            version=fit.version,
            episodes=fit.episodes,
            licensed=fit.licensed,
            reason=fit.reason,
            missing=fit.missing,
        )
        if fit
        else None,
        next_fit_in=progress.next_fit_in,
        reason=progress.reason,
        at=progress.at,
        sentence=_sentence(progress, rules) + unloaded,
    )


def _shadow(progress: Progress) -> ShadowState | None:
    tally = progress.shadowed
    return ShadowState(**tally.model_dump()) if tally else None


def _challenge(progress: Progress) -> ChallengeState | None:
    challenge = progress.challenge
    if challenge is None:
        return None
    return ChallengeState(
        number=challenge.number,
        version=challenge.version,
        newer=_arm(challenge.newer),
        present=_arm(challenge.present),
        difference=_difference(challenge.interval),
    )


def _difference(interval: Interval) -> DifferenceState:
    return DifferenceState(low=interval.low, estimate=interval.estimate, high=interval.high)


def _arm(tally: Tally, unknown: int = 0) -> ArmState:
    mean, tokens = tally.mean, tally.mean_tokens
    return ArmState(episodes=tally.count, mean=mean, tokens=tokens, unknown=unknown)


def _sentence(progress: Progress, rules: Rules) -> str:
    held = {"auto": "", "pinned": " (pinned)", "forbidden": " (forbidden by the operator)"}
    unknown = progress.silent.total
    silent = f"; {unknown} more fell silent and count as unknown" if unknown else ""
    return _of_phase(progress, rules) + silent + held[progress.mode]


def _of_phase(progress: Progress, rules: Rules) -> str:
    arms = (
        f"guided {progress.guided.mean:.0%} of {progress.guided.count}, unguided "
        f"{progress.control.mean:.0%} of {progress.control.count} episodes; "
        f"{_points(progress.interval)}"
    )
    match progress.phase:
        case "trial":
            return f"trial {progress.trial}: {arms}{_left(progress, rules)}"
        case "guiding":
            since = datetime.fromtimestamp(progress.at, UTC).strftime("%Y-%m-%d %H:%M UTC")
            kept = f"{rules.control:.0%} stay unguided as a control"
            parts = [f"guiding since {since}: {arms}", kept, *_newer(progress)]
            return "; ".join(parts)
        case "collecting":
            return _collecting(progress)


def _newer(progress: Progress) -> list[str]:
    """Clauses on a newer version while another guides."""
    if (challenge := progress.challenge) is not None:
        tried = f"version {challenge.version} is tried against version {progress.version}"
        return [f"{tried}: {challenge.figures}; {_points(challenge.interval)}"]
    return [progress.note] if progress.note else []


def _collecting(progress: Progress) -> str:
    parts = [f"{progress.episodes.count} episodes, mean outcome {progress.episodes.mean:.0%}"]
    said = progress.note or progress.reason
    if (fit := progress.fit) is not None:
        missing = f"; {fit.missing}" if fit.missing else ""
        parts.append(f"fit of {fit.episodes} episodes: {fit.reason}{missing}")
    if (tally := progress.shadowed) is not None:
        seen = f"{tally.decisions} of {DECISIONS} decisions"
        parts.append(f"version {tally.version} has seen {seen} in the shadow before its trial")
    parts.append(_next_fit(progress))
    return "; ".join([*([said] if said else []), *parts])


def _next_fit(progress: Progress) -> str:
    which = "next" if progress.fit else "first"
    if progress.next_fit_in:
        return f"the {which} fit in {progress.next_fit_in} more"
    if progress.fit_due:
        return f"the {which} fit runs, or is about to"
    if progress.learnable:
        return f"the {which} fit waits for the shadow"
    return "no episode was recorded that could be learned from"


def _points(interval: Interval) -> str:
    """A difference in percentage points: "+13 (-2 to 28) points"."""
    low, mid, high = (round(100 * end) for end in (interval.low, interval.estimate, interval.high))
    return f"{mid:+d} ({low} to {high}) points"


def _left(progress: Progress, rules: Rules) -> str:
    """About how many more episodes the trial needs, if the difference stays as it is."""
    most = rules.most_in_trial - progress.in_trial.count
    more = progress.more_to_show_a_gain
    return f"; about {max(1, math.ceil(more))} more" if more < most else f"; at most {most} more"

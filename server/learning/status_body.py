"""State of learning as it is told: GET /v1/learning."""

import math
from collections.abc import Iterator
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Final

from pydantic import Field

from qguide.qnet.trial_statistics import Interval
from qguide.server.learning.lines import Event, Mode, Phase
from qguide.server.learning.progress import Progress
from qguide.server.learning.tally import Spent, Tally
from qguide.server.learning.trials import DECISIONS
from qguide.server.own_bodies.schemas import Body
from qguide.server.settings.learning import LearningBudget, Period


class ArmState(Body):
    """Episodes that were played in one way."""

    episodes: int
    mean: float = Field(description="mean outcome, from 0 to 1; 0 of none")
    tokens: float = Field(description="mean completion tokens of an episode, candidates included")
    prompt_tokens: float = Field(description="mean tokens that its requests to the upstream read")
    cost: float | None = Field(description="mean cost of an episode; null without prices")
    unknown: int = Field(default=0, description="further ones that fell silent: no outcome, so no part of the mean")


class DifferenceState(Body):
    """Guided minus unguided mean outcome, and its interval, which may be looked at at any time."""

    low: float
    estimate: float = Field(
        description="of the episodes' outcomes, each weighed by 1 / the probability of its arm. In a trial that is the "
        "difference of the two means; while guiding, when the probability is another, it need not be"
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


class CostState(Body):
    """Extra cost of guidance, and what the budget leaves of it."""

    tokens: float = Field(
        description="mean tokens, read and generated, of a guided minus an unguided episode since the latest trial "
        "began; 0 until there are both"
    )
    cost: float | None = Field(description="the same in money; null without prices")
    tokens_per_success: float | None = Field(
        description="extra tokens for each success gained, or for an outcome of 1 gained; null while no gain is seen"
    )
    cost_per_success: float | None
    spent_tokens: int = Field(description="of candidates beside the agent's own, in the latest hour or day")
    spent_cost: float
    period: Period = Field(description="of the budget")
    budget_tokens: int | None
    budget_cost: float | None
    spent: bool = Field(description="nothing is left: one candidate a step is drawn meanwhile")


class CurvePoint(Body):
    """Mean outcome of episodes that were played in one way, and its 95 % interval."""

    first: int = Field(description="number of the first episode of this part, from 1")
    last: int
    episodes: int
    low: float
    mean: float
    high: float


class CurveChange(Body):
    """A change of the phase, or of the version."""

    episode: int = Field(description="episodes before it")
    event: Event
    phase: Phase
    version: int | None
    reason: str
    at: float = Field(description="Unix time in seconds")


class CurveState(Body):
    """Success over episodes; parts grow, so that there are never more than 80."""

    group: str
    guided: tuple[CurvePoint, ...]
    unguided: tuple[CurvePoint, ...]
    changes: tuple[CurveChange, ...] = Field(description="the latest 100")


class PolicyState(Body):
    """Outcomes of a policy where several drew."""

    mean: float = Field(description="mean outcome under a uniform prior")
    episodes: float = Field(description="each counts as the share of its actions that the policy drew; at most 500")


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
    unguided: ArmState = Field(description="since the latest trial began; while collecting, of all episodes")
    difference: DifferenceState
    cost: CostState
    version: int | None = Field(description="the version that guides")
    shadow: ShadowState | None = Field(description="the version that may be tried next")
    challenge: ChallengeState | None
    fit: FitState | None
    next_fit_in: int = Field(description="episodes until the next fit; 0: it runs, or is about to")
    reason: str = Field(description="of the latest change of the phase")
    at: float = Field(description="its Unix time in seconds; 0 before the first")
    policies: dict[str, PolicyState] = Field(description="by name; of steps that several drew")
    sentence: str


_AS_IT_IS: Final = ("phase", "mode", "learnable", "trial", "version", "next_fit_in", "reason", "at")


def state_of(
    group: str,
    progress: Progress,
    *,
    share: float | None = None,
    spent: Spent | None = None,
    nameless: int = 0,
    unrecorded: str = "",
) -> LearningState:
    """The state of a group in figures and in a sentence.

    Args:
        share: of new episodes that are guided here; None is what the phase says. It is 0 where the version could not be
            loaded.
        nameless: steps in this process that named no episode; other replicas count their own.
        unrecorded: why the latest episode of this process that could not be recorded was not.
    """
    share = progress.share if share is None else share
    lost = progress.version is not None and not share
    why = f"; version {progress.version} cannot be loaded, so nothing is guided" if lost else ""
    if nameless and not progress.episodes.count:
        why += f"; of this process's steps {nameless:,} named no episode (X-Session-ID)"
    if unrecorded:
        why += f"; the latest episode of this process that was not recorded: {unrecorded}"
    fit, silent = progress.fit, progress.silent
    cost = _cost(progress, spent or Spent())
    return LearningState(
        group=group,
        episodes=progress.episodes.count,
        successful=progress.episodes.mean,
        share=share,
        guided=_arm(progress.latest.guided, silent.count(trial=progress.trial, guided=True)),
        unguided=_arm(_unguided(progress), silent.count(trial=progress.trial, guided=False)),
        difference=DifferenceState(**asdict(progress.interval)),
        cost=cost,
        shadow=ShadowState(**seen.model_dump()) if (seen := progress.shadowed) else None,
        challenge=_challenge(progress),
        fit=FitState(**{name: getattr(fit, name) for name in FitState.model_fields}) if fit else None,
        **{name: getattr(progress, name) for name in _AS_IT_IS},
        policies={
            name: PolicyState(mean=known.mean, episodes=known.gained + known.lost)
            for name, known in sorted(progress.policies.items())
        },
        sentence=_sentence(progress) + _cost_text(cost, progress.rules.budget) + why,
    )


def curve_of(group: str, progress: Progress) -> CurveState:
    """Success over the episodes of a group, and its changes."""
    fields = set(CurveChange.model_fields)
    return CurveState(
        group=group,
        guided=tuple(_points_of(progress, guided=True)),
        unguided=tuple(_points_of(progress, guided=False)),
        changes=tuple(
            CurveChange(episode=number, **line.model_dump(include=fields)) for number, line in progress.curve.changes
        ),
    )


def _points_of(progress: Progress, *, guided: bool) -> Iterator[CurvePoint]:
    for begin, end, found in progress.curve.points(guided=guided):
        low, mean, high = found.interval
        last = min(end, progress.episodes.count)
        yield CurvePoint(first=begin + 1, last=last, episodes=found.count, low=low, mean=mean, high=high)


def extra_figures(progress: Progress) -> dict[str, float]:
    """Extra tokens and cost of a guided episode; nothing until there are both kinds."""
    guided, unguided = progress.latest.guided, _unguided(progress)
    if not (guided.count and unguided.count):
        return {}
    read = guided.mean_prompt_tokens - unguided.mean_prompt_tokens
    found = {"tokens": read + guided.mean_tokens - unguided.mean_tokens}
    if guided.mean_cost is not None and unguided.mean_cost is not None:
        found["cost"] = guided.mean_cost - unguided.mean_cost
    return found


def _cost(progress: Progress, spent: Spent) -> CostState:
    budget = progress.rules.budget
    extra, gain = extra_figures(progress), progress.interval.estimate
    gained = round(100 * gain) > 0  # less is told as +0, and may be what rounding left of no gain
    cost = extra.get("cost")
    return CostState(
        tokens=extra.get("tokens", 0.0),
        cost=cost,
        tokens_per_success=extra["tokens"] / gain if extra and gained else None,
        cost_per_success=cost / gain if cost is not None and gained else None,
        spent_tokens=spent.tokens,
        spent_cost=spent.cost,
        period=budget.period,
        budget_tokens=budget.tokens,
        budget_cost=budget.cost,
        spent=budget.is_spent(spent.tokens, spent.cost),
    )


def _cost_text(cost: CostState, budget: LearningBudget) -> str:
    said = ""
    if cost.tokens:
        money = "" if cost.cost is None else f", {cost.cost:+.2g} in cost"
        said = f"; {cost.tokens:+,.0f} tokens{money} an episode"
        if cost.tokens_per_success is not None:
            each = cost.cost_per_success
            money = "" if each is None else f" ({each:.2g})"
            said += f", {cost.tokens_per_success:,.0f}{money} for each success gained"
    if cost.spent:
        said += f"; the budget of {budget} is spent, so one candidate a step is drawn"
    return said


def _unguided(progress: Progress) -> Tally:
    """Episodes that guided ones are compared with; while collecting, all unguided ones."""
    collecting = progress.phase == "collecting"
    return progress.unguided if collecting else progress.latest.control


def _challenge(progress: Progress) -> ChallengeState | None:
    challenge = progress.challenge
    if challenge is None:
        return None
    return ChallengeState(
        number=challenge.number,
        version=challenge.version,
        newer=_arm(challenge.newer),
        present=_arm(challenge.present),
        difference=DifferenceState(**asdict(challenge.interval)),
    )


def _arm(tally: Tally, unknown: int = 0) -> ArmState:
    return ArmState(
        episodes=tally.count,
        mean=tally.mean,
        tokens=tally.mean_tokens,
        prompt_tokens=tally.mean_prompt_tokens,
        cost=tally.mean_cost,
        unknown=unknown,
    )


def _sentence(progress: Progress) -> str:
    held = {"auto": "", "pinned": " (pinned)", "forbidden": " (forbidden by the operator)"}
    unknown = progress.silent.total
    silent = f"; {unknown} more fell silent and count as unknown" if unknown else ""
    outside = f"; {progress.cut:,} of the rewards lay outside 0 to 1 and were cut: scale them"
    cut = outside if progress.cut else ""
    return _of_phase(progress) + silent + cut + held[progress.mode]


def _of_phase(progress: Progress) -> str:
    arms = f"{progress.latest.figures} episodes; {_points(progress.interval)}"
    match progress.phase:
        case "trial":
            return f"trial {progress.trial}: {arms}{_left(progress)}"
        case "guiding":
            since = datetime.fromtimestamp(progress.at, UTC).strftime("%Y-%m-%d %H:%M UTC")
            kept = f"{progress.rules.control:.0%} stay unguided as a control"
            parts = [f"guiding since {since}: {arms}", kept, *_newer(progress)]
            return "; ".join(parts)
        case "collecting":
            return _collecting(progress)


def _newer(progress: Progress) -> list[str]:
    if (challenge := progress.challenge) is not None:
        tried = f"version {challenge.version} is tried against version {progress.version}"
        return [f"{tried}: {challenge.figures}; {_points(challenge.interval)}"]
    return [progress.note] if progress.note else []


def _collecting(progress: Progress) -> str:
    ended = progress.episodes
    counted = f"{ended.count} episode{'s' * (ended.count > 1)}, mean outcome {ended.mean:.0%}"
    parts = [counted if ended.count else "no episode has ended yet"]
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


def _left(progress: Progress) -> str:
    """About how many more episodes the trial needs, if the difference stays as it is."""
    most = progress.rules.most_in_trial
    left, more = 2 * most - progress.latest.episodes, progress.more_to_show_a_gain
    if more <= left:
        return f"; about {max(1, math.ceil(more))} more"
    return f"; at most {max(1, min(left, most - progress.latest.both.count))} more"

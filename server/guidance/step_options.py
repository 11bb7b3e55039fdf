"""A step's options beside the settings and its Q model: how it is decided, and what the Q model may read of it.

Histories that are longer than a Q model takes are refused, or read through a window, the same for every Q model,
whatever scores behind it: see `qguide.qnet.decision.history_window`.
"""

import asyncio
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from typing import Final

from qguide.qnet.decision.decision import Fallback
from qguide.qnet.decision.early_stop import UntilDecided
from qguide.qnet.decision.history_window import (
    LongHistory,
    RequestSize,
    least_tokens,
    left_out_exchanges,
    requests_in,
    task_exchanges,
    window_of,
)
from qguide.qnet.decision.selection import DEFAULT_TAU, PriorBy, SelectionName
from qguide.qnet.device.scoring_worker import ReadAhead
from qguide.qnet.errors import (
    HistoryTooLongError,
    InvalidRequestError,
    OutOfDomainError,
    QGuideError,
    ScorerUnavailableError,
)
from qguide.qnet.features.domain import AnyDomain, Distance
from qguide.qnet.types import History, HistoryWindow, ScoreRequest, ScoreResult
from qguide.server.episodes.state import ServedEpisode
from qguide.server.guidance.readable_view import ReadableView
from qguide.server.guidance.step_types import GuidedStepRequest
from qguide.server.observability.metrics import Metrics
from qguide.server.own_bodies.schemas import ChoiceOptions, OutOfDomain, StepOptions
from qguide.server.q_models.served import ServedQModel
from qguide.server.q_models.threaded import QModelLease
from qguide.server.settings.settings import Settings
from qguide.server.settings.thresholds import ThresholdSettings

Obstacle = InvalidRequestError | OutOfDomainError
"""Reason, known before anything is drawn, why no candidate can be scored."""

_CHOICE: Final = (
    "; or choose by long_history (QGUIDE_LONG_HISTORY): 'window' scores after the task and the newest turns that fit, "
)
_NO_WINDOW: Final = "shorten its system and first user messages or name a Q model with a longer context"


@dataclass(frozen=True, slots=True)
class SelectionRule:
    """Rule for the choice of one request; see `qguide.qnet.decision.decision.Guidance`."""

    selection: SelectionName
    tau: float
    prior: PriorBy
    greedy_weight: float = 0.0


def selection_rule(
    options: ChoiceOptions, settings: Settings, q_model: ServedQModel, *, prior: PriorBy | None = None
) -> SelectionRule:
    """The rule by which a request's action is chosen."""
    fitted = q_model.manifest.prior if q_model.manifest else None
    wanted = options.selection or (None if options.tau is None else "posterior")
    known: SelectionName = "argmax" if fitted is None else "posterior"
    selection = wanted or settings.selection or known
    by = prior or settings.prior or (fitted.by if fitted else "votes")
    # It was fitted beside the prior of that source.
    weighed = fitted is not None and selection == "posterior" and by == fitted.by
    taus = (options.tau, settings.tau, fitted.tau if fitted else None, DEFAULT_TAU)
    return SelectionRule(
        selection=selection,
        tau=next(tau for tau in taus if tau is not None),
        prior=by,
        greedy_weight=fitted.greedy_weight if fitted and weighed else 0.0,
    )


def fallback_of(asked: GuidedStepRequest, settings: Settings) -> Fallback:
    """The answer if no Q is available.

    An agent in front of an upstream goes on without a Q, as it did before QGuide was between them.
    """
    default: Fallback = "first" if asked.policy.upstream_model else "error"
    return asked.options.fallback or settings.fallback or default


def long_history_mode(asked: GuidedStepRequest, settings: Settings) -> LongHistory:
    """The answer to a history that is too long for the Q model."""
    wanted, own = asked.options, settings.long_history
    if own is None and settings.fallback is None and asked.policy.upstream_model:
        own = "window"
    if wanted.long_history is not None or own == "window":
        return wanted.long_history or "window"
    return wanted.fallback or own or fallback_of(asked, settings)


def domain_of(q_model: ServedQModel, wanted: OutOfDomain, settings: Settings) -> AnyDomain | None:
    """The domain that a request has to be in; None where it is guided all the same."""
    mode = wanted or settings.out_of_domain
    return q_model.domain if mode == "unguided" else None


def least_read_of(options: ChoiceOptions, settings: Settings) -> float:
    """The share of a long history that has to be read; 0 where any is enough."""
    if (options.out_of_domain or settings.out_of_domain) == "guide":
        return 0.0
    return settings.least_read if options.least_read is None else options.least_read


def reason_unread(window: HistoryWindow | None, least_read: float) -> str:
    """The reason why a window shows too little of a state; "" if it shows enough."""
    if window is None or window.read_share >= least_read:
        return ""
    return (
        f"this Q model reads {window.read_share:.1%} of the history, and guides from {least_read * 100:g}% on "
        "(least_read, QGUIDE_LEAST_READ)"
    )


async def distance_of(domain: AnyDomain | None, history: History) -> Distance | None:
    """The state's distance; None without a domain. Read on a thread: a history may be long."""
    return None if domain is None else await asyncio.to_thread(domain.distance, history)


def is_adaptive(options: StepOptions, q_model: ServedQModel, *, in_episodes: bool) -> bool:
    """True if M is adaptive, which compares Q of one step with Q of the step before.

    Args:
        in_episodes: the setting: it is so where the caller says nothing, and the step is one of an episode.
    """
    if not q_model.ranks:
        by_setting = in_episodes and options.episode_id is not None
        return by_setting if options.adaptive is None else options.adaptive
    if options.adaptive:
        raise InvalidRequestError(
            f"adaptive compares Q with the previous step's, but {q_model.id} is {q_model.kind} that ranks the "
            f"candidates of one step; leave adaptive out, or {q_model.comparable}"
        )
    return False


def until_of(options: StepOptions, q_model: ServedQModel) -> UntilDecided | None:
    """The stop of draws that can change nothing; None where all M are drawn.

    Where the highest Q is not known, any further draw could change the choice by its Q.
    """
    if not options.until_decided and options.max_wait_s is None:
        return None
    if q_model.only_votes:
        return UntilDecided()
    if q_model.ranks and not options.until_decided:
        return None
    if q_model.ranks:
        raise InvalidRequestError(
            f"until_decided compares what was drawn with what may come, but {q_model.id} ranks the candidates of one "
            "step; leave it out, or name another Q model, such as the rule 'votes'"
        )
    return UntilDecided(highest_q=q_model.highest_q)


def previous_q(options: StepOptions, history: History, episode: ServedEpisode | None, q_model: str) -> float | None:
    """The Q that adaptive M has to exceed; None at an episode's first step."""
    if options.previous_q is None and options.episode_id is None:
        raise InvalidRequestError(
            "adaptive compares Q with the previous step's, but neither episode_id nor previous_q is given; send one of "
            "them"
        )
    if options.previous_q is None and episode is not None:
        return episode.previous_q(history, q_model=q_model)
    return options.previous_q


def threshold_settings(thresholds: Mapping[str, ThresholdSettings], q_model: ServedQModel) -> ThresholdSettings | None:
    """The threshold of a Q model: of its version, or of all versions with its name."""
    if q_model.ranks:
        return None
    return thresholds.get(q_model.id) or thresholds.get(q_model.name)


@dataclass(frozen=True, slots=True)
class Choices:
    """Choices of an endpoint's callers for a history that is too long, as its errors name them."""

    long_history: str = ""  # where a window or another answer can be had
    fallback: str = ""  # where no window fits


STEP: Final = Choices(
    f"{_CHOICE}'first' answers with the likeliest candidate, unguided, and 'error' refuses such histories",
    ", or set fallback (QGUIDE_FALLBACK) to 'first' for the likeliest candidate, unguided",
)
"""Of endpoints that draw candidates."""
SCORE: Final = Choices(f"{_CHOICE}and 'error' refuses such histories")
"""Of those that score the caller's candidates."""


@dataclass(slots=True)
class StepScorer:
    """A Q model as it reads one step."""

    name: str
    q_model: QModelLease
    metrics: Metrics
    obstacle: Obstacle | None
    view: ReadableView | None
    domain: AnyDomain | None
    long_history: LongHistory
    least_read: float
    _ahead: ReadAhead | None = None
    _scored: bool = False

    async def score(self, request: ScoreRequest) -> ScoreResult:
        """Score each candidate."""
        ahead_tokens = self._ahead.stop() if self._ahead else 0
        if self.view is not None and self.obstacle is None:
            candidates = tuple(map(self.view.candidate, request.candidates))
            request = replace(request, history=self.view.history, candidates=candidates)
        try:
            if self.obstacle is not None:
                raise self.obstacle
            distance = await distance_of(self.domain, request.history)
            if distance is not None and distance.outside:
                raise OutOfDomainError(distance.reason, distance=distance.value)
            result = await score_in_window(self.q_model, request, self.long_history, STEP, least_read=self.least_read)
        except OutOfDomainError as error:
            self.metrics.out_of_domain.labels(self.q_model.id).inc()
            remedy = '"out_of_domain": "guide" (QGUIDE_OUT_OF_DOMAIN) scores it all the same'
            raise OutOfDomainError(f"{error}; {remedy}", distance=error.distance) from error
        result = replace(result, distance=distance.value if distance else None)
        if self._ahead is None or self._scored:
            return result
        self._scored = True
        # What was read ahead for these candidates counts as computed, not as cached.
        mine = min(ahead_tokens, result.cached_tokens)
        return replace(result, computed_tokens=result.computed_tokens + mine, cached_tokens=result.cached_tokens - mine)

    @contextmanager
    def reading_ahead(self, history: History) -> Iterator[None]:
        """Read a history during the block, until candidates are scored.

        The tokens that it cost are counted and charged like those of scoring, used or not.
        """
        with suppress(ScorerUnavailableError):  # the request that scores is told the same
            self._ahead = self.q_model.model.read_ahead(ScoreRequest(history, ()))
        try:
            yield
        finally:
            if self._ahead is not None:
                tokens = self._ahead.stop()
                self.metrics.count_read_ahead(self.q_model.id, tokens, used=self._scored)
                self.metrics.count_scored(self.q_model.id, computed=tokens, cached=0)


async def score_in_window(
    q_model: QModelLease, request: ScoreRequest, mode: LongHistory, choices: Choices, *, least_read: float = 0.0
) -> ScoreResult:
    """Score each candidate after the history, or after a window of it.

    Args:
        mode: with "window", windows are read; otherwise too long histories are refused.
        least_read: share of the history that a window has to show.

    Raises:
        OutOfDomainError: a window shows less; nothing was scored.
    """
    try:
        return await q_model.score(request)
    except HistoryTooLongError as error:
        refusal = error
    if mode != "window":
        raise HistoryTooLongError(f"{refusal}{choices.long_history}") from refusal
    size = await q_model.model.measure(request)
    if size is None:
        raise HistoryTooLongError(
            f"{refusal}; no window can be read, because the tokens of a history cannot be counted for {q_model.name}: "
            f"{q_model.model.countable}"
        ) from refusal
    for shorter, window in _windows(request.history, size):
        if reason := reason_unread(window, least_read):
            raise OutOfDomainError(reason) from refusal
        try:
            result = await q_model.score(replace(request, history=shorter))
        except HistoryTooLongError:  # the template or the estimate needs more than was counted
            continue
        return replace(result, window=window)
    raise _no_window_fits(request.history, size, q_model.name, choices) from refusal


async def too_long_to_draw(
    history: History, q_model: ServedQModel, mode: LongHistory, *, least_read: float
) -> HistoryTooLongError | OutOfDomainError | None:
    """The error that scoring will raise for any candidate; None if it may be possible.

    Asked before candidates are drawn, which would be paid for in vain. A history of fewer bytes than the context has
    tokens is not measured: a byte is at most one token.
    """
    context = q_model.context
    size_bytes = sum(len(message.text.encode(errors="replace")) for message in history)
    if context is None or size_bytes < context:
        return None
    try:
        size = await q_model.measure(ScoreRequest(history, ()))
    except QGuideError:  # scoring will say so, where a fallback may be wanted
        return None
    if size is None or (tokens := sum(size.exchanges)) < size.context:
        return None
    if mode != "window":
        return HistoryTooLongError(
            f"the history has {tokens:,} tokens; {q_model.name} takes {size.context:,} with the candidate; shorten the "
            f"history{STEP.long_history}"
        )
    if least_tokens(size, task=task_exchanges(history)) >= size.context:
        return _no_window_fits(history, size, q_model.name, STEP)
    reasons = [reason_unread(window, least_read) for _, window in _windows(history, size)]
    return OutOfDomainError(reasons[0]) if reasons and all(reasons) else None


def _windows(history: History, size: RequestSize) -> list[tuple[History, HistoryWindow]]:
    task, requests = task_exchanges(history), requests_in(history)
    found = [left_out_exchanges(size.exchanges, task=task, requests=requests, room=room) for room in size.rooms]
    return [window_of(history, size.exchanges, left_out=left_out) for left_out in dict.fromkeys(found) if left_out]


def _no_window_fits(history: History, size: RequestSize, name: str, choices: Choices) -> HistoryTooLongError:
    task = task_exchanges(history)
    alone, least = sum(size.exchanges[:task]), least_tokens(size, task=task)
    newest = f", {least:,} with the newest turn" if least > alone else ""
    return HistoryTooLongError(
        f"the history has {sum(size.exchanges):,} tokens and no window of it fits: its task (the system and first user "
        f"messages) has {alone:,}{newest}, and {name} takes {size.context:,} with the candidate; "
        f"{_NO_WINDOW}{choices.fallback}"
    )

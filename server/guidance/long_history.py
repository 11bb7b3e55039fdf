"""Histories that are longer than a Q model takes: refused, or read through a window.

The same for every Q model, whatever scores behind it: see `qguide.qnet.decision.history_window`.
"""

from dataclasses import dataclass, replace
from typing import Final

from qguide.qnet.decision.decide import Fallback
from qguide.qnet.decision.history_window import (
    LongHistory,
    RequestSize,
    least_tokens,
    left_out_exchanges,
    requests_in,
    task_exchanges,
    window_of,
)
from qguide.qnet.errors import HistoryTooLongError, QGuideError
from qguide.qnet.types import AsyncScorer, History, HistoryWindow, ScoreRequest, ScoreResult
from qguide.server.guidance.step_types import GuidedStepRequest
from qguide.server.q_models.served import QModelLease
from qguide.server.settings.settings import Settings

_CHOICE: Final = (
    "; or choose by long_history (QGUIDE_LONG_HISTORY): 'window' scores after the task and the "
    "newest turns that fit, "
)
_NO_WINDOW: Final = (
    "shorten its system and first user messages or name a Q model with a longer context"
)


@dataclass(frozen=True, slots=True)
class Choices:
    """Choices of an endpoint's callers for a history that is too long, as its errors name them.

    Attributes:
        long_history: where a window or another answer can be had.
        fallback: where no window fits.
    """

    long_history: str = ""
    fallback: str = ""


STEP: Final = Choices(
    f"{_CHOICE}'first' answers with the likeliest candidate, unguided, and 'error' refuses such "
    "histories",
    ", or set fallback (QGUIDE_FALLBACK) to 'first' for the likeliest candidate, unguided",
)
"""Of endpoints that draw candidates."""
SCORE: Final = Choices(f"{_CHOICE}and 'error' refuses such histories")
"""Of those that score the caller's candidates."""


def fallback_of(asked: GuidedStepRequest, settings: Settings) -> Fallback:
    """The answer if no Q is available: the request's wish before the server's.

    An agent in front of an upstream goes on without a Q, as it did before QGuide was between them.
    """
    default: Fallback = "first" if asked.policy.upstream_model else "error"
    return asked.options.fallback or settings.fallback or default


def long_history_mode(asked: GuidedStepRequest, settings: Settings) -> LongHistory:
    """The answer to a history that is too long: the request's wish before the server's."""
    wanted, own = asked.options, settings.long_history
    if own is None and settings.fallback is None and asked.policy.upstream_model:
        own = "window"
    if wanted.long_history is not None or own == "window":
        return wanted.long_history or "window"
    return wanted.fallback or own or fallback_of(asked, settings)


class LongHistoryScorer:
    """A Q model's scorer that reads windows of histories that are too long for it.

    Args:
        mode: with "window", windows are read; otherwise such histories are refused.
        choices: the caller's, which the errors name.
    """

    def __init__(self, q_model: QModelLease, mode: LongHistory, choices: Choices) -> None:
        self.name = q_model.name
        self._q_model = q_model
        self._scorer: AsyncScorer = q_model.scorer
        self._mode = mode
        self._choices = choices

    async def score(self, request: ScoreRequest) -> ScoreResult:
        """Score each candidate after the history, or after a window of it."""
        try:
            return await self._scorer.score(request)
        except HistoryTooLongError as refusal:
            if self._mode != "window":
                raise HistoryTooLongError(f"{refusal}{self._choices.long_history}") from refusal
            return await self._score_window(request, refusal)

    async def _score_window(
        self, request: ScoreRequest, refusal: HistoryTooLongError
    ) -> ScoreResult:
        size = await self._q_model.model.measure(request)
        if size is None:
            raise HistoryTooLongError(
                f"{refusal}; no window can be read, because the tokens of a history cannot be "
                f"counted for {self.name}: give a judge a `context` in QGUIDE_JUDGES"
            ) from refusal
        for shorter, window in _windows(request.history, size):
            try:
                result = await self._scorer.score(replace(request, history=shorter))
            except HistoryTooLongError:  # the template or the estimate needs more than was counted
                continue
            return replace(result, window=window)
        raise _no_window_fits(request.history, size, self.name, self._choices) from refusal


async def too_long_to_draw(
    history: History, q_model: QModelLease, mode: LongHistory
) -> HistoryTooLongError | None:
    """The error that scoring will raise for any candidate; None if it may be possible.

    Asked before candidates are drawn, which would be paid for in vain. A history of fewer bytes
    than the context has tokens is not measured: a byte is at most one token.
    """
    context = q_model.model.context
    size_bytes = sum(len(message.text.encode(errors="replace")) for message in history)
    if context is None or size_bytes < context:
        return None
    try:
        size = await q_model.model.measure(ScoreRequest(history, ()))
    except QGuideError:  # scoring will say so, where a fallback may be wanted
        return None
    if size is None or (tokens := sum(size.exchanges)) < size.context:
        return None
    if mode != "window":
        return HistoryTooLongError(
            f"the history has {tokens:,} tokens; {q_model.name} takes {size.context:,} with the "
            f"candidate; shorten the history{STEP.long_history}"
        )
    if least_tokens(size, task=task_exchanges(history)) < size.context:
        return None
    return _no_window_fits(history, size, q_model.name, STEP)


def _windows(history: History, size: RequestSize) -> list[tuple[History, HistoryWindow]]:
    """The windows to try in turn, the longest first."""
    task, requests = task_exchanges(history), requests_in(history)
    found = [
        left_out_exchanges(size.exchanges, task=task, requests=requests, room=room)
        for room in size.rooms
    ]
    return [
        window_of(history, size.exchanges, left_out=left_out)
        for left_out in dict.fromkeys(found)
        if left_out
    ]


def _no_window_fits(
    history: History, size: RequestSize, name: str, choices: Choices
) -> HistoryTooLongError:
    task = task_exchanges(history)
    alone, least = sum(size.exchanges[:task]), least_tokens(size, task=task)
    newest = f", {least:,} with the newest turn" if least > alone else ""
    return HistoryTooLongError(
        f"the history has {sum(size.exchanges):,} tokens and no window of it fits: its task (the "
        f"system and first user messages) has {alone:,}{newest}, and {name} takes "
        f"{size.context:,} with the candidate; {_NO_WINDOW}{choices.fallback}"
    )

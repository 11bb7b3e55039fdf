"""A step's candidates on their way to the Q model: what it may read of the history, and whether.

Histories that are longer than a Q model takes are refused, or read through a window, the same for
every Q model, whatever scores behind it: see `qguide.qnet.decision.history_window`.
"""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from typing import Final

from qguide.qnet.decision.history_window import (
    LongHistory,
    RequestSize,
    least_tokens,
    left_out_exchanges,
    requests_in,
    task_exchanges,
    window_of,
)
from qguide.qnet.device.scoring_worker import ReadAhead
from qguide.qnet.errors import (
    HistoryTooLongError,
    InvalidRequestError,
    OutOfDomainError,
    QGuideError,
    ScorerUnavailableError,
)
from qguide.qnet.features.domain import Domain
from qguide.qnet.types import History, HistoryWindow, ScoreRequest, ScoreResult
from qguide.server.guidance.readable_view import ReadableView
from qguide.server.guidance.step_types import reason_outside
from qguide.server.observability.metrics import Metrics
from qguide.server.q_models.served import ServedQModel
from qguide.server.q_models.threaded import QModelLease

_CHOICE: Final = (
    "; or choose by long_history (QGUIDE_LONG_HISTORY): 'window' scores after the task and the newest turns that fit, "
)
_NO_WINDOW: Final = "shorten its system and first user messages or name a Q model with a longer context"


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
    f"{_CHOICE}'first' answers with the likeliest candidate, unguided, and 'error' refuses such histories",
    ", or set fallback (QGUIDE_FALLBACK) to 'first' for the likeliest candidate, unguided",
)
"""Of endpoints that draw candidates."""
SCORE: Final = Choices(f"{_CHOICE}and 'error' refuses such histories")
"""Of those that score the caller's candidates."""


class StepScorer:
    """A Q model as it reads one step.

    Args:
        obstacle: why nothing can be scored; None if it can.
        view: what is read in place of a history that no Q model reads as it is.
        domain: the states that are scored; None for all.
        long_history: with "window", windows are read; otherwise too long histories are refused.
    """

    def __init__(
        self,
        q_model: QModelLease,
        metrics: Metrics,
        *,
        obstacle: InvalidRequestError | None,
        view: ReadableView | None,
        domain: Domain | None,
        long_history: LongHistory,
    ) -> None:
        self.name = q_model.name
        self._q_model = q_model
        self._metrics = metrics
        self._obstacle = obstacle
        self._view = view
        self._domain = domain
        self._long_history = long_history
        self._ahead: ReadAhead | None = None
        self._scored = False

    async def score(self, request: ScoreRequest) -> ScoreResult:
        """Score each candidate."""
        if self._obstacle is not None:
            raise self._obstacle
        ahead_tokens = self._ahead.stop() if self._ahead else 0
        if self._view is not None:
            candidates = tuple(map(self._view.candidate, request.candidates))
            request = replace(request, history=self._view.history, candidates=candidates)
        if reason := await reason_outside(self._domain, request.history):
            self._metrics.out_of_domain.labels(self._q_model.id).inc()
            raise OutOfDomainError(f'{reason}; "out_of_domain": "guide" (QGUIDE_OUT_OF_DOMAIN) scores it all the same')
        result = await score_in_window(self._q_model, request, self._long_history, STEP)
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
            self._ahead = self._q_model.model.read_ahead(ScoreRequest(history, ()))
        try:
            yield
        finally:
            if self._ahead is not None:
                tokens = self._ahead.stop()
                self._metrics.count_read_ahead(self._q_model.id, tokens, used=self._scored)
                self._metrics.count_scored(self._q_model.id, computed=tokens, cached=0)


async def score_in_window(
    q_model: QModelLease, request: ScoreRequest, mode: LongHistory, choices: Choices
) -> ScoreResult:
    """Score each candidate after the history, or after a window of it.

    Args:
        mode: with "window", windows are read; otherwise too long histories are refused.
        choices: the caller's, which the errors name.
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
            f"{refusal}; no window can be read, because the tokens of a history cannot be "
            f"counted for {q_model.name}: {q_model.model.countable}"
        ) from refusal
    for shorter, window in _windows(request.history, size):
        try:
            result = await q_model.score(replace(request, history=shorter))
        except HistoryTooLongError:  # the template or the estimate needs more than was counted
            continue
        return replace(result, window=window)
    raise _no_window_fits(request.history, size, q_model.name, choices) from refusal


async def too_long_to_draw(history: History, q_model: ServedQModel, mode: LongHistory) -> HistoryTooLongError | None:
    """The error that scoring will raise for any candidate; None if it may be possible.

    Asked before candidates are drawn, which would be paid for in vain. A history of fewer bytes
    than the context has tokens is not measured: a byte is at most one token.
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
            f"the history has {tokens:,} tokens; {q_model.name} takes {size.context:,} with the "
            f"candidate; shorten the history{STEP.long_history}"
        )
    if least_tokens(size, task=task_exchanges(history)) < size.context:
        return None
    return _no_window_fits(history, size, q_model.name, STEP)


def _windows(history: History, size: RequestSize) -> list[tuple[History, HistoryWindow]]:
    """The windows to try in turn, the longest first."""
    task, requests = task_exchanges(history), requests_in(history)
    found = [left_out_exchanges(size.exchanges, task=task, requests=requests, room=room) for room in size.rooms]
    return [window_of(history, size.exchanges, left_out=left_out) for left_out in dict.fromkeys(found) if left_out]


def _no_window_fits(history: History, size: RequestSize, name: str, choices: Choices) -> HistoryTooLongError:
    task = task_exchanges(history)
    alone, least = sum(size.exchanges[:task]), least_tokens(size, task=task)
    newest = f", {least:,} with the newest turn" if least > alone else ""
    return HistoryTooLongError(
        f"the history has {sum(size.exchanges):,} tokens and no window of it fits: its task (the "
        f"system and first user messages) has {alone:,}{newest}, and {name} takes "
        f"{size.context:,} with the candidate; {_NO_WINDOW}{choices.fallback}"
    )

"""Windows of histories that are longer than a Q model takes: the task and the newest turns. Pure.

A history is cut between exchanges, an action and what was observed after it: so no message is cut,
and no tool call is parted from its results. The task is everything up to the first user's message,
with what stands beside it before the next action.

Turns are dropped in blocks. When the turns no longer fit, the oldest go until the others take half
of the room; then the window begins at the same turn until they overflow again. So most windows
continue the one of the step before, whose keys and values a scorer has kept. Where a window begins
depends on the history alone: a repeated request and another replica read the same.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from qguide.qnet.rendering.message_rows import exchanges
from qguide.qnet.types import History, HistoryWindow

LongHistory = Literal["error", "first", "window"]
"""Answer if a history is longer than the Q model takes: an error, the likeliest candidate, or
the one that is best by a window of the history."""

_RESERVES = (8, 4, 2)
"""Parts of the context that are kept free for what is not history. Few sizes, so that candidates
of another length rarely move the window."""
_KEPT = 2
"""Part of the room that is filled again after turns were dropped."""


@dataclass(frozen=True, slots=True)
class RequestSize:
    """Number of tokens of a request to a scorer.

    Attributes:
        exchanges: of each exchange of the history; the first is what precedes the first action.
        other: of all else: the longest candidate, its observation, a judge's instructions.
        context: most tokens that the scorer takes.
    """

    exchanges: Sequence[int]
    other: int
    context: int

    @property
    def rooms(self) -> list[int]:
        """Tokens for the history to try in turn, the most first."""
        reserves = [self.context // part for part in _RESERVES]
        return [self.context - r for r in reserves if r >= self.other] or [
            self.context - self.other
        ]


def task_exchanges(history: History) -> int:
    """Number of exchanges that are the task: up to the first with a user's message."""
    for number, (_, observed) in enumerate(exchanges(history), 1):
        if any(message.role == "user" for message in observed):
            return number
    return 1


def least_tokens(size: RequestSize, *, task: int) -> int:
    """Tokens of the smallest window: the task and the newest exchange."""
    newest = size.exchanges[-1] if len(size.exchanges) > task else 0
    return sum(size.exchanges[:task]) + newest


def skipped_exchanges(tokens: Sequence[int], *, task: int, room: int) -> int | None:
    """Number of exchanges to leave out behind the task; None if no window fits.

    Args:
        tokens: of each exchange.
        task: number of exchanges at the beginning that are always kept.
        room: most tokens of a window.
    """
    room -= sum(tokens[:task])
    start, used = task, 0
    for newest in range(task, len(tokens)):
        used += tokens[newest]
        if used <= room:
            continue
        while start < newest and used > room // _KEPT:
            used -= tokens[start]
            start += 1
    return start - task if used <= room else None


def window_of(
    history: History, tokens: Sequence[int], *, task: int, skipped: int
) -> tuple[History, HistoryWindow]:
    """The history without so many exchanges behind the task, and what was left out."""
    parts = [(*([reply] if reply else []), *seen) for reply, seen in exchanges(history)]
    kept = [*parts[:task], *parts[task + skipped :]]
    left_out = parts[task : task + skipped]
    window = HistoryWindow(
        read_messages=sum(map(len, kept)),
        left_out_messages=sum(map(len, left_out)),
        left_out_tokens=sum(tokens[task : task + skipped]),
    )
    return tuple(message for part in kept for message in part), window

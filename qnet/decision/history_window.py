"""Windows of long histories: the task, what a user asked for later, and the newest turns. Pure.

A history is cut between exchanges, an action and what was observed after it: so no message is cut, and no tool call is
parted from its results. The task is everything up to the first user's message, with what stands beside it before the
next action. What a user asks for later, behind a reply without calls in a history with calls, is kept next, the newest
first, in up to half of the room: the last request is what the newest turns are about.

Turns are dropped in blocks. When the turns no longer fit, the oldest go until the others take half of what the task and
the requests leave; then the window begins at the same turn until they overflow again. So most windows continue the one
of the step before, whose keys and values a scorer has kept. Where a window begins depends on the history alone: a
repeated request and another replica read the same.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Literal

from qguide.qnet.rendering.chat_template import exchanges
from qguide.qnet.types import History, HistoryWindow

LongHistory = Literal["error", "first", "window"]
"""Answer if a history is longer than the Q model takes: an error, the likeliest candidate, or
the one that is best by a window of the history."""

_RESERVES = (8, 4, 2)
"""Parts of the context that are kept free for what is not history. Few sizes, so that candidates
of another length rarely move the window."""
_KEPT = 2  # part of the room that is filled again after turns were dropped
_REQUESTS = 2  # part of the room that a user's later requests may take


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
        return [self.context - r for r in reserves if r >= self.other] or [self.context - self.other]


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


def requests_in(history: History) -> tuple[int, ...]:
    """Numbers of the exchanges in which a user says more than what an action was answered.

    Without calls, users' messages are observations, and there are none.
    """
    parts = list(exchanges(history))
    if not any(reply and reply.tool_calls for reply, _ in parts):
        return ()
    return tuple(
        number
        for number, (reply, observed) in enumerate(parts)
        if reply and not reply.tool_calls and any(message.role == "user" for message in observed)
    )


def left_out_exchanges(
    tokens: Sequence[int], *, task: int, requests: Sequence[int], room: int
) -> tuple[int, ...] | None:
    """Numbers of the exchanges that a window leaves out; None if no window fits.

    Args:
        tokens: of each exchange.
        task: number of exchanges at the beginning that are always kept.
        requests: see `requests_in`.
        room: most tokens of a window.
    """
    room -= sum(tokens[:task])
    start, used = task, 0
    kept: tuple[int, ...] = ()
    for newest in range(task, len(tokens)):
        used += tokens[newest]
        held = sum(tokens[number] for number in kept)
        if used + held <= room:
            continue
        while start < newest and used > (room - held) // _KEPT:
            used -= tokens[start]
            start += 1
            kept = _newest_that_fit(requests, tokens, range(task, start), room // _REQUESTS)
            held = sum(tokens[number] for number in kept)
    if used > room:
        return None
    kept = _newest_that_fit(kept, tokens, range(task, start), room - used)
    return tuple(number for number in range(task, start) if number not in kept)


def _newest_that_fit(requests: Sequence[int], tokens: Sequence[int], among: range, room: int) -> tuple[int, ...]:
    """The newest of the requests among these exchanges that fit together, in their order."""
    kept: list[int] = []
    for number in reversed(requests):
        if number in among:
            room -= tokens[number]
            if room < 0:
                break
            kept.append(number)
    return tuple(reversed(kept))


def window_of(history: History, tokens: Sequence[int], *, left_out: Collection[int]) -> tuple[History, HistoryWindow]:
    """The history without these exchanges, and what was left out."""
    parts = [(*([reply] if reply else []), *seen) for reply, seen in exchanges(history)]
    kept = [part for number, part in enumerate(parts) if number not in left_out]
    unread = sum(tokens[number] for number in left_out)
    window = HistoryWindow(
        read_messages=sum(map(len, kept)),
        read_tokens=sum(tokens) - unread,
        left_out_messages=sum(len(parts[number]) for number in left_out),
        left_out_tokens=unread,
    )
    return tuple(message for part in kept for message in part), window

"""Budget of a judge: requests and tokens within an hour, and in total."""

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from qnet.errors import JudgeBudgetError
from qnet.judging.settings import JudgeSettings

_HOUR_S: Final = 3600.0
_BUCKET_S: Final = 60.0
"""Requests are counted by the minute, so that an hour is at most 61 numbers."""


@dataclass(slots=True)
class _Count:
    """Requests and tokens since `start_s`."""

    start_s: float
    calls: int = 0
    tokens: int = 0


class JudgeBudget:
    """Requests and tokens of one judge, of one process. Not thread-safe.

    A request counts when it is sent, its tokens when it is answered: so tokens may exceed their
    limit by those of the requests in flight.

    Args:
        clock: monotonic seconds.
    """

    def __init__(
        self, judge: str, settings: JudgeSettings, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._judge = judge
        self._settings = settings
        self._clock = clock
        self._hour: deque[_Count] = deque()
        self._total = _Count(clock())

    def admit(self) -> None:
        """Count one more request.

        Raises:
            JudgeBudgetError: a limit is reached.
        """
        bucket = self._bucket()
        limits = self._settings
        for name, limit, used in (
            ("total_calls", limits.total_calls, self._total.calls),
            ("total_tokens", limits.total_tokens, self._total.tokens),
        ):
            if 0 < limit <= used:
                raise JudgeBudgetError(self._spent(name, used, limit, "raise it and restart"))
        for name, limit, used in (
            ("calls_per_hour", limits.calls_per_hour, sum(c.calls for c in self._hour)),
            ("tokens_per_hour", limits.tokens_per_hour, sum(c.tokens for c in self._hour)),
        ):
            if 0 < limit <= used:
                wait_s = self._hour[0].start_s + _HOUR_S + _BUCKET_S - self._clock()
                remedy = f"try again in {wait_s:.0f} s or raise it"
                spent = self._spent(name, used, limit, remedy)
                raise JudgeBudgetError(spent, retry_after_s=wait_s)
        bucket.calls += 1
        self._total.calls += 1

    def spend(self, tokens: int) -> None:
        """Count the tokens of an answered request."""
        self._bucket().tokens += tokens
        self._total.tokens += tokens

    def _bucket(self) -> _Count:
        """The running minute's count; minutes that ended an hour ago are dropped."""
        now = self._clock()
        while self._hour and self._hour[0].start_s + _BUCKET_S + _HOUR_S <= now:
            self._hour.popleft()
        if not self._hour or self._hour[-1].start_s + _BUCKET_S <= now:
            self._hour.append(_Count(now))
        return self._hour[-1]

    def _spent(self, name: str, used: int, limit: int, remedy: str) -> str:
        return f"judge {self._judge} has used {used:,} of its {name} of {limit:,}; {remedy}"

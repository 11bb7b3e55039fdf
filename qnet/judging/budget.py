"""Budget of a judge: requests and tokens within an hour, and in total."""

import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate
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

    The requests of a step are admitted together or not at all, because the answers of some are of
    no use. A request counts when it is sent, its tokens when it is answered: so tokens may exceed
    their limit by those of the requests in flight.

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
        self._admitted = 0

    def admit(self, requests: int) -> None:
        """Set aside so many requests, each until it is sent or released.

        Raises:
            JudgeBudgetError: they would exceed a limit; none is set aside.
        """
        if not requests:
            return
        self._bucket()  # drops what is over
        limits, total = self._settings, self._total
        needed = self._admitted + requests
        # Of tokens a request needs at least one.
        self._require("total_calls", limits.total_calls, [total.calls], needed, requests)
        self._require("total_tokens", limits.total_tokens, [total.tokens], 1, 1)
        calls = [count.calls for count in self._hour]
        self._require("calls_per_hour", limits.calls_per_hour, calls, needed, requests, hourly=True)
        tokens = [count.tokens for count in self._hour]
        self._require("tokens_per_hour", limits.tokens_per_hour, tokens, 1, 1, hourly=True)
        self._admitted += requests

    def send(self) -> None:
        """Count one of the requests that were set aside as sent."""
        self._admitted -= 1
        self._bucket().calls += 1
        self._total.calls += 1

    def release(self, requests: int) -> None:
        """Give back requests that were set aside and will not be sent."""
        self._admitted -= requests

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

    def _require(
        self,
        name: str,
        limit: int,
        used: Sequence[int],
        needed: int,
        step: int,
        *,
        hourly: bool = False,
    ) -> None:
        """Require that a limit leaves room.

        Args:
            used: so far; of an hourly limit, by minute.
            needed: room for this step and for what was set aside before it.
            step: room for this step alone.
            hourly: room comes back with time.
        """
        excess = sum(used) + needed - limit
        if not limit or excess <= 0:
            return
        wait_s = None
        remedy = "raise it and restart"
        if step > limit:
            remedy = f"ask for fewer candidates or {remedy}"
        elif hourly:
            wait_s = self._wait_s(used, excess)
            remedy = f"try again in {wait_s:.0f} s or raise it"
        more = f", and the step needs {step:,}" if step > 1 else ""
        raise JudgeBudgetError(
            f"judge {self._judge} has used {sum(used) + needed - step:,} of its {name} of "
            f"{limit:,}{more}; {remedy}",
            retry_after_s=wait_s,
        )

    def _wait_s(self, used: Sequence[int], excess: int) -> float:
        """Time until the minutes that used the excess are an hour old."""
        freed = accumulate(used)
        over = next((i for i, amount in enumerate(freed) if amount >= excess), len(used) - 1)
        return self._hour[over].start_s + _HOUR_S + _BUCKET_S - self._clock()

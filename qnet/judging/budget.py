"""Budget of a judge: requests and tokens of each caller and of all, within an hour and in total."""

import time
from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Final

from qguide.qnet.errors import JudgeBudgetError
from qguide.qnet.judging.settings import JudgeSettings

_HOUR_S: Final = 3600.0
_BUCKET_S: Final = 60.0  # requests are counted by the minute, so that an hour is at most 61 numbers


@dataclass(slots=True)
class _Count:
    """Requests and tokens since `start_s`."""

    start_s: float
    calls: int = 0
    tokens: int = 0


@dataclass(slots=True)
class _Use:
    """Requests and tokens of one caller, or of all.

    Attributes:
        hour: those of the last hour, by minute.
        admitted: requests that are set aside.
    """

    hour: deque[_Count] = field(default_factory=deque)
    calls: int = 0
    tokens: int = 0
    admitted: int = 0

    def add(self, now_s: float, *, calls: int = 0, tokens: int = 0) -> None:
        """Count in the running minute."""
        self.forget(now_s)
        if not self.hour or self.hour[-1].start_s + _BUCKET_S <= now_s:
            self.hour.append(_Count(now_s))
        self.hour[-1].calls += calls
        self.hour[-1].tokens += tokens
        self.calls += calls
        self.tokens += tokens

    def forget(self, now_s: float) -> None:
        """Drop minutes that ended an hour ago."""
        while self.hour and self.hour[0].start_s + _BUCKET_S + _HOUR_S <= now_s:
            self.hour.popleft()


class JudgeBudget:
    """Requests and tokens of one judge, of one process. Not thread-safe.

    The requests of a step are admitted together or not at all, because the answers of some are of
    no use. A request counts when it is sent, its tokens when it is answered: so tokens may exceed
    their limit by those of the requests in flight.

    A caller that has used up its hour leaves the others theirs, as long as the limits of all
    callers together are not reached. Callers are never dropped: they are few.
    """

    def __init__(self, judge: str, settings: JudgeSettings, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._judge = judge
        self._settings = settings
        self._clock = clock
        self._all = _Use()
        self._of: defaultdict[str, _Use] = defaultdict(_Use)

    def admit(self, requests: int, *, caller: str = "") -> None:
        """Set aside so many requests, each until it is sent or released."""
        if not requests:
            return
        limits, everyone, own = self._settings, self._all, self._of[caller]
        for use in (everyone, own):
            use.forget(self._clock())
        needed = everyone.admitted + requests
        # Of tokens a request needs at least one.
        self._require("total_calls", limits.total_calls, [everyone.calls], needed, requests)
        self._require("total_tokens", limits.total_tokens, [everyone.tokens], 1, 1)
        self._require_hour("total_", everyone, requests)
        self._require_hour("", own, requests, caller=caller)
        for use in (everyone, own):
            use.admitted += requests

    def send(self, *, caller: str = "") -> None:
        """Count one of the requests that were set aside as sent."""
        self.release(1, caller=caller)
        for use in (self._all, self._of[caller]):
            use.add(self._clock(), calls=1)

    def release(self, requests: int, *, caller: str = "") -> None:
        """Give back requests that were set aside and will not be sent."""
        for use in (self._all, self._of[caller]):
            use.admitted -= requests

    def hand_over(self, *, to: str, of: str) -> None:
        """Let one caller send a request that was set aside for another."""
        self._of[of].admitted -= 1
        self._of[to].admitted += 1

    def spend(self, tokens: int, *, caller: str = "") -> None:
        """Count the tokens of an answered request."""
        for use in (self._all, self._of[caller]):
            use.add(self._clock(), tokens=tokens)

    def _require_hour(self, prefix: str, use: _Use, requests: int, *, caller: str = "") -> None:
        """Require that the hourly limits of that prefix leave room."""
        for what, needed, step in (("calls", use.admitted + requests, requests), ("tokens", 1, 1)):
            name = f"{prefix}{what}_per_hour"
            used = [getattr(count, what) for count in use.hour]
            limit = getattr(self._settings, name)
            self._require(name, limit, used, needed, step, caller=caller, hour=use.hour)

    def _require(
        self,
        name: str,
        limit: int,
        used: Sequence[int],
        needed: int,
        step: int,
        *,
        caller: str = "",
        hour: Sequence[_Count] | None = None,
    ) -> None:
        """Require that a limit leaves room.

        Args:
            used: so far; of an hourly limit, by minute.
            needed: room for this step and for what was set aside before it.
            step: room for this step alone.
            hour: the minutes of an hourly limit, whose room comes back with time; None for others.
        """
        excess = sum(used) + needed - limit
        if not limit or excess <= 0:
            return
        wait_s = None
        remedy = "raise it and restart"
        if step > limit:
            remedy = f"ask for fewer candidates or {remedy}"
        elif hour is not None:
            wait_s = self._wait_s(hour, used, excess)
            remedy = f"try again in {wait_s:.0f} s or raise it"
        more = f", and the step needs {step:,}" if step > 1 else ""
        raise JudgeBudgetError(
            f"judge {self._judge} has used {sum(used) + needed - step:,} of its {name} of "
            f"{limit:,}{f' for key {caller}' if caller else ''}{more}; {remedy}",
            retry_after_s=wait_s,
        )

    def _wait_s(self, hour: Sequence[_Count], used: Sequence[int], excess: int) -> float:
        """Time until the minutes that used the excess are an hour old."""
        # Minutes are forgotten in their order, so room comes back in theirs.
        freed = accumulate(used)
        over = next((i for i, amount in enumerate(freed) if amount >= excess), len(used) - 1)
        now_s = self._clock()
        # Where all of it is still to be sent, it will be in this minute.
        return (hour[over].start_s if hour else now_s) + _HOUR_S + _BUCKET_S - now_s

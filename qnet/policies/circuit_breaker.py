"""A circuit breaker: who fails again and again is left alone for a while.

closed ── N failures in a row ──▶ open ── open_s later ──▶ half-open: one probe
▲                                ▲                          │
└──────────── success ───────────┴───────── failure ────────┘
"""

import time
from collections.abc import Callable


class CircuitBreaker:
    """Counts the failures of one upstream. For one event loop.

    Every call that `admit` lets through ends with `succeed`, `fail` or `abandon` and what `admit`
    gave it. Calls of before the last opening are not listened to: they say nothing of now, and
    the probe's place is not theirs to give back.

    Args:
        failures: in a row, until it opens.
        open_s: how long nothing is let through.
        clock: seconds that never run backwards.
    """

    def __init__(
        self, *, failures: int, open_s: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._most_failures = failures
        self._open_s = open_s
        self._clock = clock
        self._failures = 0
        self._opened_at: float | None = None
        self._openings = 0
        self._probing = False

    @property
    def is_open(self) -> bool:
        """Whether calls are refused, but for a probe."""
        return self._opened_at is not None

    @property
    def wait_s(self) -> float:
        """0 where a call may begin, else the seconds until one may."""
        if self._opened_at is None:
            return 0.0
        wait_s = self._opened_at + self._open_s - self._clock()
        if wait_s > 0:
            return wait_s
        return self._open_s if self._probing else 0.0

    def admit(self) -> int:
        """Let a call begin, where `wait_s` is 0; what it gives belongs to the call's end."""
        self._probing = self.is_open
        return self._openings

    def succeed(self, admitted: int) -> None:
        """A call got its answer."""
        if admitted == self._openings:
            self._failures = 0
            self._opened_at = None
            self._probing = False

    def fail(self, admitted: int) -> None:
        """A call got none."""
        if admitted != self._openings:
            return
        self._failures += 1
        if self.is_open or self._failures >= self._most_failures:
            self._opened_at = self._clock()
            self._openings += 1
            self._probing = False

    def abandon(self, admitted: int) -> None:
        """A call ended without showing anything."""
        if admitted == self._openings:
            self._probing = False

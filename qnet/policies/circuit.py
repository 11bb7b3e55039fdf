"""A circuit breaker: who fails again and again is left alone for a while.

closed ── N failures in a row ──▶ open ── open_s later ──▶ half-open: one probe
▲                                ▲                          │
└──────────── success ───────────┴───────── failure ────────┘
"""

import time
from collections.abc import Callable


class CircuitBreaker:
    """Counts the failures of one upstream. For one event loop.

    Every call that `admit` lets through ends with `succeed`, `fail` or `abandon`.

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
        self._probing = False

    def admit(self) -> float:
        """0 where a call may begin, else the seconds until one may."""
        if self._opened_at is None:
            return 0.0
        wait_s = self._opened_at + self._open_s - self._clock()
        if wait_s > 0:
            return wait_s
        if self._probing:
            return self._open_s
        self._probing = True
        return 0.0

    def succeed(self) -> None:
        """A call got its answer."""
        self._failures = 0
        self._opened_at = None
        self._probing = False

    def fail(self) -> None:
        """A call got none."""
        self._failures += 1
        self._probing = False
        if self._opened_at is not None or self._failures >= self._most_failures:
            self._opened_at = self._clock()

    def abandon(self) -> None:
        """A call was given up before it could show anything."""
        self._probing = False

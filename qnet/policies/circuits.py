"""Memory of an upstream's failures: circuit breakers, one for each caller and one for all; its `n`.

A breaker stops requests to an upstream that keeps failing, then tries it with one.

closed ── N failures in a row ──▶ open ── open_s later ──▶ half-open: one probe
▲                                ▲                          │
└──────────── success ───────────┴───────── failure ────────┘

A caller's failures in a row open its own circuit, because they may be its requests' fault. However
many callers fail, they may be one person with several keys. So the circuit of all is open only
while the upstream's health check fails as well, and a caller's circuit has opened since anybody was
answered: a failing check alone may be about nothing but the list of models.
"""

import asyncio
import logging
import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Final

from qguide.qnet.errors import UpstreamRefusedError
from qguide.qnet.work import NOBODY, current_tenant, work_group


class CircuitOpenError(Exception):
    """The circuit of a caller (None: of all) is open for `wait_s`, or half-open with a probe of another caller.

    `failure` is the last one that was counted, of this caller or of anybody.
    """

    def __init__(self, wait_s: float, *, caller: str | None = None, failure: str = "") -> None:
        super().__init__(f"the circuit is open for {wait_s:.1f} s")
        self.wait_s = wait_s
        self.caller = caller
        self.failure = failure


@dataclass(frozen=True, slots=True, eq=False)
class Admission:
    """Permission for one call, handed back with its outcome.

    Attributes:
        opening: how often the circuit had opened when the call began.
        answers: how many calls had succeeded when it began.
    """

    opening: int
    answers: int
    group: object | None


class CircuitBreaker:
    """Counts consecutive failures of one upstream, one for each group. For one event loop.

    A step that the upstream cannot answer fails with each of its draws and with their retries. If
    all of them counted, one bad request would shut out every caller.

    Every call that `admit` lets through ends with one of `succeed`, `fail` and `abandon`. Outcomes of calls that began
    before the last opening do not count: they are not about the upstream as it is now.

    Args:
        failures: in a row, after which the circuit opens.
        open_s: time without any call after an opening; also how long a probe keeps other callers
            from probing, so that a slow completion does not shut them out.
    """

    def __init__(self, *, failures: int, open_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._max_failures = failures
        self._open_s = open_s
        self._clock = clock
        self._failures: set[object] = set()
        self.answers = 0
        self._openings = 0
        self._opened_at: float | None = None
        self._probes: list[Admission] = []
        self._probed_at = 0.0
        self._changed = asyncio.Event()

    @property
    def is_open(self) -> bool:
        """True while open or half-open: at most a probe is let through."""
        return self._opened_at is not None

    @property
    def wait_s(self) -> float:
        """Seconds until a call may begin; 0 if one may begin now."""
        if self._opened_at is None:
            return 0.0
        since = self._probed_at if self._probes else self._opened_at
        return max(0.0, since + self._open_s - self._clock())

    async def admit(self) -> Admission:
        """Let a call begin, or raise a `CircuitOpenError`.

        A call that is drawn together with the probe waits for the probe's outcome. To refuse it would fail the draw and
        so cancel the probe: for a caller who draws candidates in parallel the circuit would never close.
        """
        group = work_group()
        # Asked again after each wake: another draw of the group may be the probe by then.
        while group is not None and any(probe.group is group for probe in self._probes):
            await self._changed.wait()
        if wait_s := self.wait_s:
            raise CircuitOpenError(wait_s)
        admission = Admission(self._openings, self.answers, group)
        if self.is_open:
            self._probes.append(admission)
            self._probed_at = self._clock()
        return admission

    def succeed(self, admission: Admission) -> None:
        """Record that the upstream answered."""
        self.answers += 1
        if admission.opening == self._openings:
            self.close()

    def fail(self, admission: Admission) -> bool:
        """Record that the upstream failed; returns True if this opens the circuit."""
        if admission.opening != self._openings:
            return False
        # A set of groups: a step's draws and their retries, which fail together, count once.
        self._failures.add(admission.group or admission)
        opens = self.is_open or len(self._failures) >= self._max_failures
        if opens:
            self.open()
        return opens

    def open(self) -> None:
        """Let nothing through from now on, but a probe after `open_s`."""
        self._opened_at = self._clock()
        # What began before has another number from here on, and its outcome no longer counts.
        self._openings += 1
        self._failures.clear()  # while open, each failure of a probe opens it again
        self._end(self._probes)

    def close(self) -> None:
        """Let everything through from now on."""
        self._failures.clear()
        self._opened_at = None
        self._end(self._probes)

    def abandon(self, admission: Admission) -> None:
        """Record that a call ended without showing whether the upstream is well."""
        self._end([admission])

    def _end(self, probes: list[Admission]) -> None:
        """Forget these probes and wake the calls that wait for one."""
        self._probes = [probe for probe in self._probes if probe not in probes]
        # Set and replaced: who waits now is woken, and who comes later waits for the next change.
        self._changed.set()
        self._changed = asyncio.Event()


@dataclass(slots=True, eq=False)
class UpstreamCall:
    """Permission for one call, of its caller's circuit and of that of all.

    Attributes:
        failure: how it failed, in words that any caller may read; "" if it did not.
    """

    caller: str
    own: Admission
    shared: Admission
    failure: str = ""


class UpstreamCircuits:
    """Circuit breakers of one upstream. For one event loop.

    Every call that `admit` lets through ends with one of `succeed`, `fail`, `time_out` and
    `abandon`. Callers are told apart by `Tenant.name` and never dropped: they are few.

    Args:
        failures: of one caller in a row, after which its circuit opens.
    """

    def __init__(self, *, failures: int, open_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._new: Callable[[], CircuitBreaker] = partial(CircuitBreaker, failures=failures, open_s=open_s, clock=clock)
        self._own: dict[str, CircuitBreaker] = {}
        # One failure is enough here, because `fail` counts only those that the health check confirms.
        self._all = CircuitBreaker(failures=1, open_s=open_s, clock=clock)
        self._has_a_caller_failed = False
        self._has_the_check_failed = False
        self._failures: dict[str | None, str] = {}  # the last one of each caller; of None anybody's

    @property
    def are_open(self) -> bool:
        """True while nobody's calls are let through, but a probe."""
        nobody = self._own.get(NOBODY.name)  # on a server without keys everybody
        return self._all.is_open or (nobody is not None and nobody.is_open)

    async def admit(self) -> UpstreamCall:
        """Let a call of the current caller begin."""
        caller = current_tenant().name
        own = self._own.setdefault(caller, self._new())
        try:
            admission = await own.admit()
        except CircuitOpenError as error:
            raise CircuitOpenError(error.wait_s, caller=caller, failure=self._failures.get(caller, "")) from None
        try:
            return UpstreamCall(caller, admission, await self._all.admit())
        except BaseException as error:
            # The circuit of all refuses: a probe of the own one that is never sent would block the next.
            own.abandon(admission)
            if isinstance(error, CircuitOpenError):
                error.failure = self._failures.get(None, "")
            raise

    def succeed(self, call: UpstreamCall) -> None:
        """Record that the upstream answered."""
        self._own[call.caller].succeed(call.own)
        self._all.succeed(call.shared)
        self._has_a_caller_failed = False

    def fail(self, call: UpstreamCall) -> None:
        """Record that the upstream failed."""
        self._failures |= {call.caller: call.failure, None: call.failure}
        if self._own[call.caller].fail(call.own):
            self._has_a_caller_failed = True
        if self._has_the_check_failed and self._has_a_caller_failed:
            self._all.fail(call.shared)
        else:
            self._all.abandon(call.shared)

    def time_out(self, call: UpstreamCall) -> None:
        """Record that no answer came in time.

        It is a failure only if no other request was answered meanwhile. Otherwise the upstream is
        well and the completion was too long.
        """
        if call.shared.answers != self._all.answers:
            self.abandon(call)
        else:
            self.fail(call)

    def abandon(self, call: UpstreamCall) -> None:
        """Record that a call ended without showing whether the upstream is well."""
        self._own[call.caller].abandon(call.own)
        self._all.abandon(call.shared)

    def checked(self, *, is_well: bool) -> None:
        """Record the outcome of a health check."""
        self._has_the_check_failed = not is_well
        if is_well:
            # Callers' own circuits stay as they are: the check sends none of their requests.
            self._all.close()
        elif self._has_a_caller_failed and not self._all.is_open:
            self._all.open()


def refusal(upstream: str, failures: int, error: CircuitOpenError) -> str:
    """The message of a call that no circuit lets through."""
    failed = f"upstream {upstream} failed {failures} times in a row"
    refused = "gets no requests"
    if error.caller is None:
        failed += " and does not answer its health check"
    elif error.caller != NOBODY.name:
        failed, refused = f"{failed} for this key", "gets none of its requests"
    if error.failure:
        failed += f" (the last time it {error.failure})"
    return f"{failed} and {refused} for {error.wait_s:.1f} s; try later"


FAILURES: Final = 3
"""In a row, after which `n` is not sent. One alone may be the request's own: a filtered choice, a
content policy that refuses some of the draws."""

FORGET_AFTER_S: Final = 300.0

_NAMES_N = re.compile(r"\bn\b|candidate_?count|multiple candidates", re.IGNORECASE)
_log = logging.getLogger(__name__)


class NSupport:
    """Counts draws by `n` that failed although the same request without it was answered."""

    def __init__(self, upstream: str, *, is_supported: bool, clock: Callable[[], float] = time.monotonic) -> None:
        self._upstream = upstream
        self._is_supported = is_supported
        self._clock = clock
        self._failures = 0
        self._missing_until = 0.0

    def __bool__(self) -> bool:
        """True if the next draw should try `n`."""
        return self._is_supported and self._clock() >= self._missing_until

    def succeed(self) -> None:
        """Record an answer with as many choices as were asked for."""
        self._failures = 0

    def fail(self, refusal: UpstreamRefusedError | None) -> None:
        """Record an answer with fewer choices, or a refusal of what was answered without `n`.

        After `FORGET_AFTER_S` one more failure is enough, since no success came between.
        """
        self._failures += 1
        if self._failures < FAILURES and not (refusal and _names_n(refusal)):
            return
        self._failures = FAILURES
        self._missing_until = self._clock() + FORGET_AFTER_S
        _log.warning(
            "upstream %s %s; each candidate is a request of its own for the next %g s; set its "
            '"n" to "parallel" to keep it so',
            self._upstream,
            "refuses n" if refusal else "answers n with fewer choices",
            FORGET_AFTER_S,
        )


def _names_n(refusal: UpstreamRefusedError) -> bool:
    if refusal.parameter is not None:
        return refusal.parameter == "n"
    _, _, reason = str(refusal).partition("refused: ")
    return bool(_NAMES_N.search(reason))

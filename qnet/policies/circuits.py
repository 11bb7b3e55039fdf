"""Circuit breakers of one upstream: one for each caller, and one for all.

A caller's failures in a row open its own circuit, because they may be its requests' fault. However
many callers fail, they may be one person with several keys. So the circuit of all is open only
while the upstream's health check fails as well, and a caller's circuit has opened since anybody was
answered: a failing check alone may be about nothing but the list of models.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from qguide.qnet.policies.circuit_breaker import Admission, CircuitBreaker, CircuitOpenError
from qguide.qnet.tenant import NOBODY, current_tenant


@dataclass(frozen=True, slots=True, eq=False)
class UpstreamCall:
    """Permission for one call, of its caller's circuit and of that of all."""

    caller: str
    own: Admission
    shared: Admission


class UpstreamCircuits:
    """Circuit breakers of one upstream. For one event loop.

    Every call that `admit` lets through ends with one of `succeed`, `fail`, `time_out` and
    `abandon`. Callers are told apart by `Tenant.name` and never dropped: they are few.

    Args:
        failures: of one caller in a row, after which its circuit opens.
        open_s: see `CircuitBreaker`.
        clock: monotonic seconds.
    """

    def __init__(
        self, *, failures: int, open_s: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._new: Callable[[], CircuitBreaker] = partial(
            CircuitBreaker, failures=failures, open_s=open_s, clock=clock
        )
        self._own: dict[str, CircuitBreaker] = {}
        self._all = CircuitBreaker(failures=1, open_s=open_s, clock=clock)
        self._has_a_caller_failed = False
        self._has_the_check_failed = False

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
            raise CircuitOpenError(error.wait_s, caller=caller) from None
        try:
            return UpstreamCall(caller, admission, await self._all.admit())
        except BaseException:
            own.abandon(admission)
            raise

    def succeed(self, call: UpstreamCall) -> None:
        """Record that the upstream answered."""
        self._own[call.caller].succeed(call.own)
        self._all.succeed(call.shared)
        self._has_a_caller_failed = False

    def fail(self, call: UpstreamCall) -> None:
        """Record that the upstream failed."""
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
        if self._all.has_answered_since(call.shared):
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
    return f"{failed} and {refused} for {error.wait_s:.1f} s; try later"

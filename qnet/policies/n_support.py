"""Memory of an upstream that takes no `n`, which is forgotten after a while."""

import logging
import re
import time
from collections.abc import Callable
from typing import Final

from qguide.qnet.errors import UpstreamRefusedError

FAILURES: Final = 3
"""In a row, after which `n` is not sent. One alone may be the request's own: a filtered choice, a
content policy that refuses some of the draws."""

FORGET_AFTER_S: Final = 300.0

_NAMES_N = re.compile(r"\bn\b")
_log = logging.getLogger(__name__)


class NSupport:
    """Counts draws by `n` that failed although the same request without it was answered.

    Args:
        upstream: its name, for the log.
        is_supported: False if `n` is never to be sent.
        clock: monotonic seconds.
    """

    def __init__(
        self, upstream: str, *, is_supported: bool, clock: Callable[[], float] = time.monotonic
    ) -> None:
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
    """True if the refusal says that `n` is at fault."""
    if refusal.parameter is not None:
        return refusal.parameter == "n"
    _, _, reason = str(refusal).partition("refused: ")
    return bool(_NAMES_N.search(reason))

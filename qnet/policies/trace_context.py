"""W3C trace context of the running task, sent to upstreams as `traceparent` and `tracestate`.

An upstream's spans then belong to the trace of the request that they were made for. The headers
travel in a context variable, so that policies know nothing of OpenTelemetry.
"""

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Final

TRACEPARENT: Final = "traceparent"
TRACESTATE: Final = "tracestate"
_PARENT: Final = re.compile(r"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}(-[ -~]{0,64})?")
_STATE: Final = re.compile(r"[\t -~]{1,512}")
_NONE: Final[Mapping[str, str]] = {}

_current: ContextVar[Mapping[str, str]] = ContextVar("trace_context", default=_NONE)


@contextmanager
def in_trace(headers: Mapping[str, str]) -> Iterator[None]:
    """Requests sent within, also by tasks that begin within, carry the trace of these headers.

    Args:
        headers: with lower-case names or case-insensitive; a malformed trace is left out.
    """
    token = _current.set(_well_formed(headers))
    try:
        yield
    finally:
        _current.reset(token)


def trace_headers() -> Mapping[str, str]:
    """The headers of the current trace; empty outside of any."""
    return _current.get()


def _well_formed(headers: Mapping[str, str]) -> Mapping[str, str]:
    parent, state = headers.get(TRACEPARENT, ""), headers.get(TRACESTATE, "")
    if not _PARENT.fullmatch(parent):
        return _NONE
    return {TRACEPARENT: parent} | ({TRACESTATE: state} if _STATE.fullmatch(state) else {})

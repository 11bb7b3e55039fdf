"""Context of the requests to an upstream: the episode, the trace and the cache salt of a caller.

All travel in context variables, so that policies know nothing of episodes or of OpenTelemetry.

The episode is sent as `X-Session-ID`: a router in front of several replicas sends the requests of
one session to one replica, which has the episode's prefix cached. The W3C trace context is sent as
`traceparent` and `tracestate`, so that an upstream's spans belong to the trace of the request.

The usage of each request comes back the same way. A draw may take several: if one of them fails,
the candidates of the others are dropped, and with them the usage that they carry, though it was
paid for. Here it is collected all the same.
"""

import json
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from hashlib import sha256
from typing import Any, Final
from urllib.parse import quote

from qguide.qnet.tenant import current_tenant
from qguide.qnet.types import Candidate, History, Policy, Sampling
from qguide.qnet.usage import TokenUsage

HEADER: Final = "X-Session-ID"
_SAFE: Final = "/:@!$*+,;=()'&[]"

_current: ContextVar[str] = ContextVar("session", default="")
TRACEPARENT: Final = "traceparent"
TRACESTATE: Final = "tracestate"
_PARENT: Final = re.compile(r"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}(-[ -~]{0,64})?")
_STATE: Final = re.compile(r"[\t -~]{1,512}")
_NONE: Final[Mapping[str, str]] = {}
_trace: ContextVar[Mapping[str, str]] = ContextVar("trace_context", default=_NONE)
_collecting: ContextVar[list[TokenUsage] | None] = ContextVar("usage", default=None)


@contextmanager
def in_session(session_id: str) -> Iterator[None]:
    """Requests sent within, also by tasks that begin within, belong to this session."""
    token = _current.set(session_id)
    try:
        yield
    finally:
        _current.reset(token)


class SessionPolicy:
    """A policy whose draws, and nothing else of the step, belong to a session."""

    def __init__(self, policy: Policy, session_id: str) -> None:
        self.name = policy.name
        self._policy = policy
        self._session_id = session_id

    async def sample(self, history: History, *, n: int, sampling: Sampling) -> list[Candidate]:
        """Draw `n` candidates; it raises what the policy raises."""
        with in_session(self._session_id):
            return await self._policy.sample(history, n=n, sampling=sampling)


def current_session() -> str:
    """The id of the current session; "" outside of any."""
    return _current.get()


def session_headers() -> dict[str, str]:
    """The header of the current session; empty outside of any.

    Characters that a header cannot carry are percent-encoded.
    """
    session_id = current_session()
    return {HEADER: quote(session_id, safe=_SAFE)} if session_id else {}


def cache_salt_of(body: Mapping[str, Any]) -> dict[str, str]:
    """The salt to send; a caller that gives one of its own divides its own cache further."""
    salt = current_tenant().cache_salt
    if not salt:
        return {}
    given = json.dumps(body.get("cache_salt"))
    return {"cache_salt": sha256(f"{salt}\0{given}".encode()).hexdigest()}


@contextmanager
def in_trace(headers: Mapping[str, str]) -> Iterator[None]:
    """Requests sent within, also by tasks that begin within, carry the trace of these headers.

    Args:
        headers: with lower-case names or case-insensitive; a malformed trace is left out.
    """
    token = _trace.set(_well_formed(headers))
    try:
        yield
    finally:
        _trace.reset(token)


def trace_headers() -> Mapping[str, str]:
    """The headers of the current trace; empty outside of any."""
    return _trace.get()


def _well_formed(headers: Mapping[str, str]) -> Mapping[str, str]:
    parent, state = headers.get(TRACEPARENT, ""), headers.get(TRACESTATE, "")
    if not _PARENT.fullmatch(parent):
        return _NONE
    return {TRACEPARENT: parent} | ({TRACESTATE: state} if _STATE.fullmatch(state) else {})


@contextmanager
def collect_usage() -> Iterator[list[TokenUsage]]:
    """Collect the usage of all requests answered within, by this task and those it starts."""
    outer, inner = _collecting.get(), list[TokenUsage]()
    token = _collecting.set(inner)
    try:
        yield inner
    finally:
        _collecting.reset(token)
        if outer is not None:
            outer.extend(inner)


def record_usage(spent: TokenUsage) -> None:
    """Add the usage of one answer to the running collections."""
    collecting = _collecting.get()
    if collecting is not None:
        collecting.append(spent)

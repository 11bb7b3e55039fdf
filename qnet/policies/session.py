"""The episode that a request to an upstream belongs to, sent as `X-Session-ID`.

A router in front of several replicas sends the requests of one session to one replica, which has
the episode's prefix cached. The id travels in a context variable, so that agents need not know it.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Final
from urllib.parse import quote

from qguide.qnet.types import Candidate, History, Policy, Sampling

HEADER: Final = "X-Session-ID"
_SAFE: Final = "/:@!$*+,;=()'&[]"

_current: ContextVar[str] = ContextVar("session", default="")


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

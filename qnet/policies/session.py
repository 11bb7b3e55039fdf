"""The episode that a request to an upstream belongs to, sent as `X-Session-ID`.

A router in front of several replicas sends the requests of one session to one replica, which has
the episode's prefix cached. The id travels in a context variable, so that agents need not know it.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Final
from urllib.parse import quote

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


def session_headers() -> dict[str, str]:
    """The header of the current session; empty outside of any.

    Characters that a header cannot carry are percent-encoded.
    """
    session_id = _current.get()
    return {HEADER: quote(session_id, safe=_SAFE)} if session_id else {}

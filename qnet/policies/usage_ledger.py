"""What each request to an upstream cost, told as soon as its answer is there.

A draw may take several requests. Where one of them fails, the candidates of the others are lost
with the bills on them, but they were paid for: who counts hears of them here.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from qnet.types import TokenUsage

_heard: ContextVar[list[TokenUsage] | None] = ContextVar("bills", default=None)


@contextmanager
def bills() -> Iterator[list[TokenUsage]]:
    """Those of all requests that are answered within, also to tasks that begin within."""
    outer, inner = _heard.get(), list[TokenUsage]()
    token = _heard.set(inner)
    try:
        yield inner
    finally:
        _heard.reset(token)
        if outer is not None:
            outer.extend(inner)


def record_usage(spent: TokenUsage) -> None:
    """Say what an answer cost to whoever listens."""
    heard = _heard.get()
    if heard is not None:
        heard.append(spent)

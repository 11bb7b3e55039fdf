"""Collects token usage per upstream request, including requests whose draw later fails.

A draw may take several requests. If one of them fails, the candidates of the others are dropped,
and with them the usage that they carry, though it was paid for. Here it is collected all the same.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from qguide.qnet.usage import TokenUsage

_collecting: ContextVar[list[TokenUsage] | None] = ContextVar("usage", default=None)


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

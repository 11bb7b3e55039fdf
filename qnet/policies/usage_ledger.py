"""What each request to an upstream cost, told as soon as its answer is there.

A draw may take several requests. Where one of them fails, the candidates of the others are lost
with the bills on them, but they were paid for: who counts hears of them here.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from qnet.types import Spent

_heard: ContextVar[list[Spent] | None] = ContextVar("bills", default=None)


@contextmanager
def bills() -> Iterator[list[Spent]]:
    """Those of all requests that are answered within, also to tasks that begin within."""
    outer, inner = _heard.get(), list[Spent]()
    token = _heard.set(inner)
    try:
        yield inner
    finally:
        _heard.reset(token)
        if outer is not None:
            outer.extend(inner)


def tell(spent: Spent) -> None:
    """Say what an answer cost to whoever listens."""
    heard = _heard.get()
    if heard is not None:
        heard.append(spent)

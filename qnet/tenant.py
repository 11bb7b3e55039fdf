"""The caller that a task works for, as far as caches and the device tell callers apart.

It travels in a context variable, so that a scorer's or policy's caller need not hand it through.
Jobs, which have no callers, run as `NOBODY`.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Final


@dataclass(frozen=True, slots=True)
class Tenant:
    """A caller.

    Attributes:
        name: callers of different names take turns at the device.
        cache_salt: what is cached under one salt is never found under another, so that cached
            tokens or a fast answer do not tell a caller what others have asked.
        request: the request that is worked for, as far as it can be told from others; a request
            may have many scores.
    """

    name: str = ""
    cache_salt: str = ""
    request: object = field(default=None, compare=False, repr=False)


NOBODY: Final = Tenant()
_current: ContextVar[Tenant] = ContextVar("tenant", default=NOBODY)


def current_tenant() -> Tenant:
    """The caller that the running task works for."""
    return _current.get()


@contextmanager
def working_for(tenant: Tenant) -> Iterator[None]:
    """Within this, and in tasks that begin within, the work is for `tenant`."""
    token = _current.set(tenant)
    try:
        yield
    finally:
        _current.reset(token)

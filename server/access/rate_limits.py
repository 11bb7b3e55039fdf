"""Rate limits per caller: concurrent requests, requests per minute and tokens per day.

Windows are fixed and begin with a caller's first request in them, so `Retry-After` is exactly the
rest of the window. Tokens are known only after they were spent, so a budget can be overdrawn by
requests that were admitted before it ran out. Replicas count together in Redis; while Redis is
down each counts on its own, starting at zero.
"""

import math
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Final, TypeVar

import structlog
from limits import RateLimitItem, RateLimitItemPerDay, RateLimitItemPerMinute
from limits.aio.storage import MemoryStorage
from limits.aio.strategies import FixedWindowRateLimiter, RateLimiter
from redis.exceptions import ResponseError

from qguide.server.access.keys import Key
from qguide.server.context.request_context import Account
from qguide.server.errors.types import OverLimitError, rate_limit_headers
from qguide.server.redis.client import RedisLink
from qguide.server.settings.settings import Settings

ANONYMOUS: Final = "anonymous"
_ROUNDING_S: Final = 0.5
Answer = TypeVar("Answer")
_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Caller:
    """A caller and its limits, where 0 is no limit.

    Attributes:
        cache_salt: see `qguide.qnet.tenant.Tenant`; "" shares every cache, on a server without
            keys.
    """

    name: str
    admin: bool
    requests_per_minute: int
    tokens_per_day: int
    cache_salt: str = ""


def caller_of(key: Key | None, settings: Settings) -> Caller:
    """The caller of a key; None is the anonymous caller of a server without keys."""
    if key is None:
        return Caller(ANONYMOUS, True, settings.requests_per_minute, settings.tokens_per_day)
    requests, tokens = key.requests_per_minute, key.tokens_per_day
    return Caller(
        key.name,
        key.admin,
        settings.requests_per_minute if requests is None else requests,
        settings.tokens_per_day if tokens is None else tokens,
        key.cache_salt,
    )


class Limiter:
    """Counts the requests and tokens of callers.

    Args:
        link: Redis in which replicas count together; None counts in this process. Concurrent
            requests are always counted in this process.
        concurrent_requests: maximum concurrent requests of each caller; 0 is no limit.
    """

    def __init__(self, link: RedisLink | None, *, concurrent_requests: int) -> None:
        self._concurrent_requests = concurrent_requests
        self._running: Counter[str] = Counter()
        self._link = link
        self._own: RateLimiter = FixedWindowRateLimiter(MemoryStorage())
        self._shared = FixedWindowRateLimiter(link.limits_storage()) if link else self._own

    @property
    def running(self) -> int:
        """Number of admitted requests that have no complete answer yet."""
        return self._running.total()

    @asynccontextmanager
    async def admit(self, caller: Caller, account: Account) -> AsyncIterator[Mapping[str, str]]:
        """Admit a request; yields the RateLimit headers, and charges its tokens afterwards.

        Raises:
            OverLimitError: the caller has reached its concurrent requests, its requests of this
                minute or its tokens of this day.
        """
        self._enter(caller)
        try:
            headers = await self._windows(caller, lambda windows: self._count(caller, windows))
            try:
                yield headers
            finally:
                await self._charge(caller, account.tokens)
        finally:
            self._running[caller.name] -= 1
            if not self._running[caller.name]:
                del self._running[caller.name]

    def _enter(self, caller: Caller) -> None:
        most = self._concurrent_requests
        if most and self._running[caller.name] >= most:
            raise OverLimitError(
                f"{caller.name} has {most:,} requests running, its limit; wait until one has ended",
                code="too_many_at_once",
                limit=most,
                retry_after_s=1,
            )
        self._running[caller.name] += 1

    async def _count(self, caller: Caller, windows: RateLimiter) -> Mapping[str, str]:
        if caller.tokens_per_day:
            budget = _tokens(caller)
            if not await windows.test(budget, caller.name):
                reset_s, _ = await self._rest(windows, budget, caller)
                raise OverLimitError(
                    f"{caller.name} has used up its {caller.tokens_per_day:,} tokens of 24 hours; "
                    "retry later or ask the operator for more",
                    code="tokens_used_up",
                    limit=caller.tokens_per_day,
                    retry_after_s=reset_s,
                )
        if not caller.requests_per_minute:
            return {}
        rate = _requests(caller)
        admitted = await windows.hit(rate, caller.name)
        reset_s, remaining = await self._rest(windows, rate, caller)
        if not admitted:
            raise OverLimitError(
                f"{caller.name} has used up its {caller.requests_per_minute:,} requests of this "
                "minute; retry later or ask the operator for more",
                code="rate_limited",
                limit=caller.requests_per_minute,
                retry_after_s=reset_s,
            )
        return rate_limit_headers(caller.requests_per_minute, remaining=remaining, reset_s=reset_s)

    async def _rest(
        self, windows: RateLimiter, item: RateLimitItem, caller: Caller
    ) -> tuple[int, int]:
        """Whole seconds until the window has certainly ended, and the requests left in it."""
        reset_at, remaining = await windows.get_window_stats(item, caller.name)
        # Redis reports the rest of a window in whole seconds, up to half a second too short.
        rounding_s = 0.0 if windows is self._own else _ROUNDING_S
        rest_s = math.ceil(reset_at - time.time() + rounding_s)
        return min(max(1, rest_s), item.get_expiry()), remaining

    async def _charge(self, caller: Caller, tokens: int) -> None:
        if tokens and caller.tokens_per_day:
            budget = _tokens(caller)
            await self._windows(
                caller, lambda windows: windows.hit(budget, caller.name, cost=tokens)
            )

    async def _windows(
        self, caller: Caller, ask: Callable[[RateLimiter], Awaitable[Answer]]
    ) -> Answer:
        if self._link is None:
            return await ask(self._own)
        return await self._link.use(lambda: self._ask_shared(caller, ask), lambda: ask(self._own))

    async def _ask_shared(
        self, caller: Caller, ask: Callable[[RateLimiter], Awaitable[Answer]]
    ) -> Answer:
        """Count in Redis, resetting a counter that does not hold a number."""
        try:
            return await ask(self._shared)
        except (ValueError, ResponseError) as error:
            # Subclasses mean that Redis itself is full, read-only or refuses us.
            if isinstance(error, ResponseError) and type(error) is not ResponseError:
                raise
        for item in (_requests(caller), _tokens(caller)):
            try:
                await self._shared.hit(item, caller.name, cost=0)  # fails if it is not a number
            except ResponseError:
                _log.warning("rate_limit_counter_unreadable", key=caller.name, window=str(item))
                await self._shared.clear(item, caller.name)
        return await ask(self._shared)


def _requests(caller: Caller) -> RateLimitItem:
    return RateLimitItemPerMinute(caller.requests_per_minute, namespace="requests")


def _tokens(caller: Caller) -> RateLimitItem:
    return RateLimitItemPerDay(caller.tokens_per_day, namespace="tokens")

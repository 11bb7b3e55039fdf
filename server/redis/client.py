"""One Redis that may go at any moment: what it does better, memory does as well as it can.

The first failure turns the link down, and nobody waits for Redis again until a ping is answered.
Keys live in one namespace, `qguide:`, and all of them expire.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import TypeVar

import structlog
from limits.aio.storage import RedisStorage
from redis.asyncio import ConnectionPool, Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import RedisError

from server.observability.metrics import Metrics

Answer = TypeVar("Answer")

NAMESPACE = "qguide"
_log = structlog.get_logger(__name__)


class RedisLink:
    """A connection pool, and whether Redis can be had now.

    Args:
        timeout_s: a slower Redis is gone.
        ping_every_s: how soon one that is back, or has gone unnoticed, is noticed.
    """

    def __init__(
        self, url: str, metrics: Metrics, *, timeout_s: float = 0.5, ping_every_s: float = 1.0
    ) -> None:
        self.up = True
        self._gauge = metrics.redis_up()
        self._gauge.set(1)
        self._ping_every_s = ping_every_s
        self._watching = False
        self._told = False
        self._pool: ConnectionPool = ConnectionPool.from_url(
            url,
            socket_timeout=timeout_s,
            socket_connect_timeout=timeout_s,
            retry=Retry(NoBackoff(), 0),
        )
        self.client = Redis(connection_pool=self._pool)
        self._url = url

    def limits_storage(self) -> RedisStorage:
        """Where `limits` counts; it shares the connections."""
        return RedisStorage(
            self._url,
            implementation="redispy",
            key_prefix=f"{NAMESPACE}:limits",
            connection_pool=self._pool,  # type: ignore[arg-type]  # read by its `use_basic`
        )

    async def use(
        self, ask: Callable[[], Awaitable[Answer]], otherwise: Callable[[], Awaitable[Answer]]
    ) -> Answer:
        """What Redis says, or what is said without it."""
        if self.up:
            try:
                return await ask()
            except (RedisError, OSError) as error:
                self._set(up=False, reason=type(error).__name__)
        return await otherwise()

    def read(self, row: bytes | None, parse: Callable[[bytes], Answer]) -> Answer | None:
        """What a row says; None where there is none, or one that another version wrote."""
        if row is None:
            return None
        try:
            return parse(row)
        except ValueError as error:  # pydantic's and json's are
            if not self._told:
                _log.warning("redis_row_unreadable", reason=type(error).__name__)
            self._told = True
            return None

    @asynccontextmanager
    async def watched(self) -> AsyncIterator[None]:
        """Ping as long as this lasts, beginning at once; then close the connections."""
        await self._ping()
        self._watching = True
        pinging = asyncio.create_task(self._ping_on())
        try:
            yield
        finally:
            # A cancelled ping may end as a time-out of redis-py's, and the task would go on.
            self._watching = False
            pinging.cancel()
            await asyncio.gather(pinging, return_exceptions=True)
            await self.client.aclose()
            await self._pool.disconnect()

    async def _ping_on(self) -> None:
        while self._watching:
            await asyncio.sleep(self._ping_every_s)
            await self._ping()

    async def _ping(self) -> None:
        try:
            await self.client.ping()
        except (RedisError, OSError) as error:
            self._set(up=False, reason=type(error).__name__)
        else:
            self._set(up=True, reason="")

    def _set(self, *, up: bool, reason: str) -> None:
        if up == self.up:
            return
        self.up = up
        self._gauge.set(int(up))
        if up:
            _log.info("redis_back")
        else:
            _log.warning("redis_gone", reason=reason, now="memory")

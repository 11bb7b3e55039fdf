"""Redis client with in-memory fallback while Redis is down.

The first failure turns the link down, and no request waits for Redis again until a ping is
answered. Keys live in one namespace, `qguide:`, and all of them expire.
"""

import asyncio
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Final, TypeVar
from urllib.parse import urlsplit

import structlog
from limits.aio.storage import RedisStorage
from redis.asyncio import ConnectionPool, Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import RedisError

from qnet.errors import ConfigError
from server.observability.metrics import Metrics

Answer = TypeVar("Answer")

NAMESPACE: Final = "qguide"
_DATABASE: Final = re.compile(r"/?\d*")
_log = structlog.get_logger(__name__)


class RedisLink:
    """A connection pool, and the state of Redis: `up` or not.

    Args:
        timeout_s: a Redis that takes longer is down.
        ping_every_s: interval after which a Redis that is back, or down unnoticed, is noticed.

    Raises:
        ConfigError: the URL is no address of a Redis.
    """

    def __init__(
        self, url: str, metrics: Metrics, *, timeout_s: float = 0.5, ping_every_s: float = 1.0
    ) -> None:
        self._pool = _connection_pool(url, timeout_s=timeout_s)
        self.up = True
        self._gauge = metrics.redis_up()
        self._gauge.set(1)
        self._ping_every_s = ping_every_s
        self._watching = False
        self._told = False
        self.client = Redis(connection_pool=self._pool)
        self._url = url

    def limits_storage(self) -> RedisStorage:
        """Storage for the counters of `limits`, over the same connections."""
        return RedisStorage(
            self._url,
            implementation="redispy",
            key_prefix=f"{NAMESPACE}:limits",
            connection_pool=self._pool,  # type: ignore[arg-type]  # read by its `use_basic`
        )

    async def use(
        self, ask: Callable[[], Awaitable[Answer]], otherwise: Callable[[], Awaitable[Answer]]
    ) -> Answer:
        """The answer of Redis, or the other one while it is down."""
        if self.up:
            try:
                return await ask()
            except (RedisError, OSError) as error:
                self._set(up=False, reason=type(error).__name__)
        return await otherwise()

    def read(self, row: bytes | None, parse: Callable[[bytes], Answer]) -> Answer | None:
        """The value of a row; None where there is none, or one that another version wrote."""
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
        """Ping for the block, beginning at once; then close the connections."""
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


def _connection_pool(url: str, *, timeout_s: float) -> ConnectionPool:
    """Connections to this address; none is opened yet."""
    try:
        pool: ConnectionPool = ConnectionPool.from_url(
            url,
            socket_timeout=timeout_s,
            socket_connect_timeout=timeout_s,
            retry=Retry(NoBackoff(), 0),
        )
        # An unknown option shows here, or else with the first request.
        pool.make_connection()  # type: ignore[no-untyped-call]
        address = urlsplit(url)
        if address.scheme != "unix" and not _DATABASE.fullmatch(address.path):
            raise ValueError("the database is no number")
    except (ValueError, TypeError):
        # Neither the URL nor the library's reason, which may quote a password out of it.
        raise ConfigError(
            "QGUIDE_REDIS_URL is no address of a Redis; write "
            "redis://[:PASSWORD@]HOST[:PORT][/DATABASE], rediss:// for TLS or unix:///PATH, and "
            "quote / @ : ? # of a password as %2F %40 %3A %3F %23"
        ) from None
    return pool

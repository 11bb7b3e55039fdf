"""Redis client with in-memory fallback while Redis is down.

The first failure marks Redis as down, and no request waits for it again until a ping is answered. All keys are in the
namespace `qguide:` and expire. The first `RedisLink` imports its library, so that a server without Redis starts sooner.
"""

import asyncio
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from time import monotonic
from typing import TYPE_CHECKING, Final, TypeVar, cast
from urllib.parse import urlsplit

import structlog
from cachetools import TTLCache

from qguide.qnet.errors import ConfigError
from qguide.server.observability.metrics import Metrics

if TYPE_CHECKING:
    from limits.aio.storage import RedisStorage
    from redis.asyncio import ConnectionPool

Answer = TypeVar("Answer")

NAMESPACE: Final = "qguide"
_DATABASE: Final = re.compile(r"/?\d*")
_log = structlog.get_logger(__name__)
_MEMORY_ROWS: Final = 10_000
_LATE_S: Final = 0.05  # a time-out that comes so much later than it should is told by a process that was busy itself


class RedisLink:
    """Connection pool that knows whether Redis is up."""

    def __init__(self, url: str, metrics: Metrics, *, timeout_s: float = 0.5, ping_every_s: float = 1.0) -> None:
        from redis.asyncio import Redis
        from redis.exceptions import RedisError, TimeoutError

        self._failures, self._late = (RedisError, OSError), TimeoutError
        self._pool = _connection_pool(url, timeout_s=timeout_s)
        self.up = True
        self._gauge = metrics.redis_up()
        self._gauge.set(1)
        self._timeout_s = timeout_s  # Redis counts as down when a command takes longer
        self._ping_every_s = ping_every_s
        self._watching = False
        self._unreadable_logged = False
        self.client = Redis(connection_pool=self._pool)
        self._url = url

    def limits_storage(self) -> "RedisStorage":
        """Storage for the counters of the `limits` library, over the same connections."""
        from limits.aio.storage import RedisStorage

        return RedisStorage(
            self._url,
            implementation="redispy",
            key_prefix=f"{NAMESPACE}:limits",
            connection_pool=self._pool,  # type: ignore[arg-type]  # read by its `use_basic`
        )

    async def use(
        self,
        ask: Callable[[], Awaitable[Answer]],
        otherwise: Callable[[], Awaitable[Answer]],
        *,
        repeatable: bool = True,
    ) -> Answer:
        """The result of `ask`, or that of `otherwise` while Redis is down.

        Args:
            repeatable: False where doing it twice is another thing than once. Where this process was late to hear
                whether it was done, `otherwise` answers, and Redis stays up.
        """

        async def unless_down() -> Answer:
            await self.client.ping()
            return await otherwise()

        if self.up:
            try:
                return await self._asked(ask, again=ask if repeatable else unless_down)
            except self._failures as error:
                self._set(up=False, reason=type(error).__name__)
        return await otherwise()

    async def _asked(self, ask: Callable[[], Awaitable[Answer]], *, again: Callable[[], Awaitable[Answer]]) -> Answer:
        """The result of `ask`, or that of `again` if this process was late to hear it."""
        began_s = monotonic()
        try:
            return await ask()
        except self._late:
            if monotonic() - began_s < self._timeout_s + _LATE_S:
                raise
        return await again()

    def read(self, row: bytes | None, parse: Callable[[bytes], Answer]) -> Answer | None:
        """Parse a stored value; None if it is missing or was written in another format."""
        if row is None:
            return None
        try:
            return parse(row)
        except ValueError as error:  # the base class of pydantic's and json's errors
            if not self._unreadable_logged:
                _log.warning("redis_row_unreadable", reason=type(error).__name__)
            self._unreadable_logged = True
            return None

    @asynccontextmanager
    async def watched(self) -> AsyncIterator[None]:
        """Ping at once and then regularly inside the block; close the connections after it."""
        await self._ping()
        self._watching = True
        pinging = asyncio.create_task(self._ping_on())
        try:
            yield
        finally:
            # redis-py may turn the cancellation into a timeout, after which the loop would go on.
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
            await self._asked(self.client.ping, again=self.client.ping)
        except self._failures as error:
            self._set(up=False, reason=type(error).__name__)
        else:
            if not self.up:
                # Those that idled while Redis died are dead; each would fail one more request.
                with suppress(*self._failures):  # they are dropped even if they do not close
                    await self._pool.disconnect(inuse_connections=False)
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


def _connection_pool(url: str, *, timeout_s: float) -> "ConnectionPool":
    from redis.asyncio import ConnectionPool
    from redis.asyncio.retry import Retry
    from redis.backoff import NoBackoff

    try:
        pool: ConnectionPool = ConnectionPool.from_url(
            url, socket_timeout=timeout_s, socket_connect_timeout=timeout_s, retry=Retry(NoBackoff(), 0)
        )
        # Fail on an unknown option here rather than at the first request. Made and not connected: the options are
        # looked at only here.
        pool.make_connection()  # type: ignore[no-untyped-call]
        address = urlsplit(url)
        if address.scheme != "unix" and not _DATABASE.fullmatch(address.path):
            raise ValueError("the database is not a number")
    except (ValueError, TypeError):
        # The message shows neither the URL nor the library's reason, which may quote a password.
        raise ConfigError(
            "QGUIDE_REDIS_URL is not a valid Redis URL; write redis://[:PASSWORD@]HOST[:PORT][/DATABASE], rediss:// "
            "for TLS or unix:///PATH, and percent-encode / @ : ? # in the password as %2F %40 %3A %3F %23"
        ) from None
    return pool


class SharedRows:
    """Rows by key for a limited time: in Redis, and copies of one's own in memory for when it is down or absent."""

    def __init__(
        self,
        link: RedisLink | None,
        kind: str,
        *,
        ttl_s: float,
        most: int = _MEMORY_ROWS,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        self._link = link
        self._kind = kind
        self._ttl_s = ttl_s
        self._own = TTLCache[str, bytes](most, ttl_s, timer=clock)

    async def get(self, key: str, parse: Callable[[bytes], Answer]) -> Answer | None:
        """The parsed row of a key; None if it is unknown or was written in another format."""

        async def own() -> Answer | None:
            row = self._own.get(key)
            return None if row is None else parse(row)

        if (link := self._link) is None:
            return await own()

        async def shared() -> Answer | None:
            known = link.read(cast("bytes | None", await link.client.get(self._name(key))), parse)
            return await own() if known is None else known

        return await link.use(shared, own)

    async def put(self, key: str, row: bytes) -> None:
        """Keep a row, in place of an earlier one."""
        self._own[key] = row
        if (link := self._link) is None:
            return

        async def shared() -> None:
            await link.client.set(self._name(key), row, px=max(1, round(self._ttl_s * 1e3)))

        async def kept() -> None:
            """While Redis is down the copy is all there is."""

        await link.use(shared, kept)

    def _name(self, key: str) -> str:
        return f"{NAMESPACE}:{self._kind}:{key}"

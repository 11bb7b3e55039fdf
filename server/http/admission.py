"""Admission of requests: trusted hosts, API keys, graceful shutdown and rate limits.

The key is checked before any of the body is read, so that requests without one cost next to nothing. Limits apply after
the body has arrived, so that slow senders do not use up places. They are of concurrent requests, requests per minute
and tokens per day.

Windows are fixed and begin with a caller's first request in them, so `Retry-After` is exactly the rest of the window.
Tokens are known only after they were spent, so a budget can be overdrawn by requests that were admitted before it ran
out. Replicas count together in Redis; while Redis is down each counts on its own, starting at zero.
"""

import math
import re
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from ipaddress import ip_address
from typing import Any, Final, Literal, TypeVar

import structlog
from fastapi import Request
from limits import RateLimitItem, RateLimitItemPerDay, RateLimitItemPerMinute
from limits.aio.storage import MemoryStorage
from limits.aio.strategies import FixedWindowRateLimiter, RateLimiter
from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from qguide.qnet.policies.upstream_dialects import DIALECTS
from qguide.qnet.work import Tenant, working_for
from qguide.server.http.errors import (
    ForbiddenError,
    OverLimitError,
    UnauthorizedError,
    UntrustedHostError,
    rate_limit_headers,
)
from qguide.server.http.keys import Key
from qguide.server.http.middleware import HttpMiddleware
from qguide.server.observability.request_context import Account
from qguide.server.redis.client import RedisLink
from qguide.server.settings.settings import Settings

ANONYMOUS: Final = "anonymous"
ANY_HOST: Final = "*"
_ROUNDING_S: Final = 0.5
Answer = TypeVar("Answer")
_log = structlog.get_logger(__name__)
KEY_HEADERS: Final = (*(one.key_header for one in DIALECTS.values() if one.key_header), "api-key")
"""Headers that may hold a key beside `Authorization`; the last is that of Azure's clients."""
HEALTH: Final = frozenset({"/health", "/healthz", "/readyz"})
METRICS: Final = frozenset({"/metrics"})
DOCS: Final = frozenset(
    {"/docs", "/docs/start.js", "/docs/swagger-ui-bundle.js", "/docs/swagger-ui.css", "/openapi.json", "/redoc"}
)
PAGE: Final = frozenset({"/", "/playground"})
"""The playground page; the paths below /playground/ (its files and features) are open as well."""
_OF_A_RESPONSE: Final = re.compile(r"/v1/responses/(?!compact$|input_tokens$)[^/]+(/cancel)?")
"""Looks at a stored response, cancels or deletes it: what the response itself must not prevent, which has its caller's
place as long as it is made in the background."""
Kind = Literal["work", "look", "end"]
"""Kinds of requests: a look at a stored response, the end of one, and any other."""
_SCHEMES: Final = {
    "bearer": {"type": "http", "scheme": "bearer", "description": "`Authorization: Bearer KEY`"},
    **{name: {"type": "apiKey", "in": "header", "name": name} for name in KEY_HEADERS},
}
_OPEN: Final = HEALTH | {"/playground/abilities"}


@dataclass(frozen=True, slots=True)
class Caller:
    """A caller and its limits, where 0 is no limit."""

    name: str
    admin: bool
    requests_per_minute: int
    tokens_per_day: int
    all_metrics: bool = True
    cache_salt: str = ""  # see `qguide.qnet.work.Tenant`; "" shares every cache, on a server without keys


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
        key.admin or key.metrics,
        key.cache_salt,
    )


class Limiter:
    """Counts the requests and tokens of callers."""

    def __init__(self, link: RedisLink | None, *, concurrent_requests: int) -> None:
        self._concurrent_requests = concurrent_requests
        self._running: Counter[tuple[str, Kind]] = Counter()
        # Redis in which replicas count together; None counts in this process. Concurrent requests are always counted in
        # this process.
        self._link = link
        self._own: RateLimiter = FixedWindowRateLimiter(MemoryStorage())
        self._shared = FixedWindowRateLimiter(link.limits_storage()) if link else self._own

    @property
    def running(self) -> int:
        """Number of admitted requests that have no complete answer yet."""
        return self._running.total()

    @asynccontextmanager
    async def admit(self, caller: Caller, account: Account, *, kind: Kind = "work") -> AsyncIterator[Mapping[str, str]]:
        """Admit a request; yields the RateLimit headers, and charges its tokens afterwards.

        Args:
            kind: looks, which may wait for an answer, have as many places as work has; ends are short and need none.
        """
        place = (caller.name, kind)
        if kind != "end":
            self._check_running(place)
        self._running[place] += 1
        try:
            headers = await self._windows(caller, lambda windows: self._count(caller, windows))
            try:
                yield headers
            finally:
                if account.tokens and caller.tokens_per_day:
                    budget, cost = _tokens(caller), account.tokens
                    await self._windows(caller, lambda windows: windows.hit(budget, caller.name, cost=cost))
        finally:
            self._running[place] -= 1
            if not self._running[place]:
                del self._running[place]

    def _check_running(self, place: tuple[str, Kind]) -> None:
        most = self._concurrent_requests
        if most and self._running[place] >= most:
            raise OverLimitError(
                f"{place[0]} has {most:,} requests running, its limit; wait until one has ended",
                code="too_many_at_once",
                limit=most,
                retry_after_s=1,
            )

    async def _count(self, caller: Caller, windows: RateLimiter) -> Mapping[str, str]:
        if caller.tokens_per_day:
            budget = _tokens(caller)
            # Tokens are looked at first: a request that is refused for them uses up none of the minute's.
            if not await windows.test(budget, caller.name):
                reset_s, _ = await self._rest(windows, budget, caller)
                raise OverLimitError(
                    f"{caller.name} has used up its {caller.tokens_per_day:,} tokens of 24 hours; retry later or ask "
                    "the operator for more",
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
                f"{caller.name} has used up its {caller.requests_per_minute:,} requests of this minute; retry later or "
                "ask the operator for more",
                code="rate_limited",
                limit=caller.requests_per_minute,
                retry_after_s=reset_s,
            )
        return rate_limit_headers(caller.requests_per_minute, remaining=remaining, reset_s=reset_s)

    async def _rest(self, windows: RateLimiter, item: RateLimitItem, caller: Caller) -> tuple[int, int]:
        """Whole seconds until the window has certainly ended, and the requests left in it."""
        reset_at, remaining = await windows.get_window_stats(item, caller.name)
        # Redis reports the rest of a window in whole seconds, up to half a second too short.
        rounding_s = 0.0 if windows is self._own else _ROUNDING_S
        rest_s = math.ceil(reset_at - time.time() + rounding_s)
        return min(max(1, rest_s), item.get_expiry()), remaining

    async def _windows(self, caller: Caller, ask: Callable[[RateLimiter], Awaitable[Answer]]) -> Answer:
        if self._link is None:
            return await ask(self._own)
        return await self._link.use(lambda: self._ask_shared(caller, ask), lambda: ask(self._own), repeatable=False)

    async def _ask_shared(self, caller: Caller, ask: Callable[[RateLimiter], Awaitable[Answer]]) -> Answer:
        """Count in Redis, resetting a counter that does not hold a number."""
        from redis.exceptions import ResponseError  # needless where nothing is shared

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


class TrustedHosts(HttpMiddleware):
    """Refuses requests whose Host header is not one of this server's names.

    A web page on evil.example can make that name resolve to 127.0.0.1 and then call this server as its own origin; the
    browser still sends `Host: evil.example`. An IP address in Host is therefore always safe. With API keys such a page
    has no key to send, so the check is made only if the operator lists trusted hosts.
    """

    def __init__(self, app: ASGIApp, *, settings: Settings) -> None:
        super().__init__(app)
        self._names = {"localhost", settings.host.lower(), *map(str.lower, settings.trusted_hosts)}
        self._any = ANY_HOST in self._names or bool(settings.keys_file and not settings.trusted_hosts)

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        if not self._any:
            hosts = [value for name, value in scope["headers"] if name == b"host"]
            if not all(self._is_trusted(_name_in(host)) for host in hosts) or len(hosts) > 1:
                raise UntrustedHostError(
                    f"the Host header is {b', '.join(hosts).decode('latin-1')[:80]!r}; this server accepts localhost, "
                    "IP addresses and the names in QGUIDE_TRUSTED_HOSTS; add the name there "
                    '(["qguide.example"]; ["*"] accepts any)'
                )
        await self.app(scope, receive, send)

    def _is_trusted(self, name: str) -> bool:
        if name in self._names or name.endswith(".localhost"):
            return True
        try:
            ip_address(name)
        except ValueError:
            return False
        return True


def _name_in(host: bytes) -> str:
    """The host name without its port, in lower case."""
    text = host.decode("latin-1").strip().lower()
    if text.startswith("["):
        return text[1:].partition("]")[0]
    return text.partition(":")[0].removesuffix(".")


class AdmissionMiddleware(HttpMiddleware):
    """Refuses requests without a valid API key or during shutdown; health checks are open to all."""

    def __init__(self, app: ASGIApp, *, settings: Settings) -> None:
        super().__init__(app)
        self._settings = settings
        self._anonymous = caller_of(None, settings)
        self._open = set(HEALTH)
        if settings.public_metrics:
            self._open |= METRICS
        if settings.public_docs:
            self._open |= DOCS

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = scope["path"]
        is_page = path in PAGE or path.startswith("/playground/")
        if path not in self._open and not (self._settings.playground and is_page):
            self._admit(scope)
        await self.app(scope, receive, send)

    def _admit(self, scope: Scope) -> None:
        state = scope["app"].state
        caller = self._caller(scope)
        scope["state"]["account"].key = caller.name if state.keys else None
        if scope["path"] in METRICS:  # served even during shutdown and above limits
            scope["state"]["metrics_reader"] = caller
        else:
            scope["state"]["caller"] = caller
            state.drain.check()

    def _caller(self, scope: Scope) -> Caller:
        keys = scope["app"].state.keys
        if keys is None:
            return self._anonymous
        given = _given_key(Headers(scope=scope))
        if given is None:
            raise UnauthorizedError(
                "the request has no API key; send one as `Authorization: Bearer KEY` or `X-API-Key: KEY`"
            )
        key: Key | None = keys.find(given)
        if key is None:
            raise UnauthorizedError("the API key is unknown; ask the operator for a valid one")
        return caller_of(key, self._settings)


class RateLimits(HttpMiddleware):
    """Refuses requests above the caller's limits, and charges the tokens they spend."""

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        caller = scope.get("state", {}).get("caller")
        if caller is None:
            await self.app(scope, receive, send)
            return
        limiter: Limiter = scope["app"].state.limiter
        account = scope["state"]["account"]
        tenant = Tenant(account.key or "", caller.cache_salt, request=account)
        async with limiter.admit(caller, account, kind=_kind_of(scope)) as left:

            async def with_limits(message: Message) -> None:
                if message["type"] == "http.response.start":
                    MutableHeaders(scope=message).update(left)
                await send(message)

            with working_for(tenant):
                await self.app(scope, receive, with_limits if left else send)


def _kind_of(scope: Scope) -> Kind:
    if not _OF_A_RESPONSE.fullmatch(scope["path"]):
        return "work"
    return "look" if scope["method"] == "GET" else "end"


async def require_admin(request: Request) -> None:
    """Require an admin key."""
    caller: Caller = request.state.caller
    if not caller.admin:
        raise ForbiddenError(
            f"the key {caller.name!r} is not an admin key; create one with `qguide keys create NAME --admin`"
        )


def _given_key(headers: Headers) -> str | None:
    scheme, _, token = headers.get("authorization", "").partition(" ")
    if scheme.lower() == "bearer" and token.strip():
        return token.strip()
    return next((headers[name] for name in KEY_HEADERS if name in headers), None)


def declare_keys(document: dict[str, Any], *, required: bool) -> None:
    """Declare the headers that may hold a key."""
    document["components"]["securitySchemes"] = _SCHEMES
    alternatives: list[dict[str, list[str]]] = [{name: []} for name in _SCHEMES]
    document["security"] = alternatives if required else [{}, *alternatives]
    for path in _OPEN & document["paths"].keys():
        for operation in document["paths"][path].values():
            operation["security"] = []

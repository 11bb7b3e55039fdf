"""Admission of requests: API keys, graceful shutdown and rate limits.

The key is checked before any of the body is read, so that requests without one cost next to
nothing. Limits apply after the body has arrived, so that slow senders do not use up places.
"""

from typing import Final

from fastapi import Request
from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from qguide.qnet.errors import QGuideError
from qguide.qnet.tenant import Tenant, working_for
from qguide.server.access.keys import Key
from qguide.server.access.rate_limits import Caller, Limiter, caller_of
from qguide.server.errors.table import known_error_response
from qguide.server.errors.types import ForbiddenError, OverLimitError, UnauthorizedError
from qguide.server.settings.settings import Settings

KEY_HEADERS: Final = ("x-api-key", "x-goog-api-key", "api-key")
"""Headers that may hold a key beside `Authorization`: of Anthropic's, Gemini's, Azure's clients."""
HEALTH: Final = frozenset({"/health", "/healthz", "/readyz"})
METRICS: Final = frozenset({"/metrics"})
DOCS: Final = frozenset(
    {
        "/docs",
        "/docs/start.js",
        "/docs/swagger-ui-bundle.js",
        "/docs/swagger-ui.css",
        "/openapi.json",
        "/redoc",
    }
)
PAGE: Final = frozenset({"/", "/playground"})
"""The playground page; the paths below /playground/ (its files and features) are open as well."""


class AdmissionMiddleware:
    """Refuses requests without a valid API key or during shutdown; health checks are open to all.

    Drain and keys are taken from the application's state.
    """

    def __init__(self, app: ASGIApp, *, settings: Settings) -> None:
        self.app = app
        self._settings = settings
        self._anonymous = caller_of(None, settings)
        self._open = set(HEALTH)
        if settings.public_metrics:
            self._open |= METRICS
        if settings.public_docs:
            self._open |= DOCS

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request, or answer with the reason for its refusal."""
        if scope["type"] != "http" or self._is_open(scope["path"]):
            await self.app(scope, receive, send)
            return
        try:
            await self._serve(scope, receive, send)
        except QGuideError as error:  # raised here; errors of routes have been answered already
            await known_error_response(Request(scope), error)(scope, receive, send)

    def _is_open(self, path: str) -> bool:
        is_page = path in PAGE or path.startswith("/playground/")
        return path in self._open or (self._settings.playground and is_page)

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        state = scope["app"].state
        caller = self._caller(scope)
        scope["state"]["account"].key = caller.name if state.keys else None
        if scope["path"] not in METRICS:  # served even during shutdown and above limits
            scope["state"]["caller"] = caller
            state.drain.check()
        await self.app(scope, receive, send)

    def _caller(self, scope: Scope) -> Caller:
        keys = scope["app"].state.keys
        if keys is None:
            return self._anonymous
        given = _given_key(Headers(scope=scope))
        if given is None:
            raise UnauthorizedError(
                "the request has no API key; send one as `Authorization: Bearer KEY` or "
                "`X-API-Key: KEY`"
            )
        key: Key | None = keys.find(given)
        if key is None:
            raise UnauthorizedError("the API key is unknown; ask the operator for a valid one")
        return caller_of(key, self._settings)


class RateLimits:
    """Refuses requests above the caller's limits, and charges the tokens they spend.

    The limiter is taken from the application's state; open paths have no caller and no limits.
    """

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request within its caller's limits."""
        caller = scope.get("state", {}).get("caller")
        if caller is None:
            await self.app(scope, receive, send)
            return
        try:
            await self._serve(scope, caller, receive, send)
        except OverLimitError as error:  # raised here; errors of routes have been answered already
            await known_error_response(Request(scope), error)(scope, receive, send)

    async def _serve(self, scope: Scope, caller: Caller, receive: Receive, send: Send) -> None:
        limiter: Limiter = scope["app"].state.limiter
        account = scope["state"]["account"]
        tenant = Tenant(account.key or "", caller.cache_salt, request=account)
        async with limiter.admit(caller, account) as left:

            async def with_limits(message: Message) -> None:
                if message["type"] == "http.response.start":
                    MutableHeaders(scope=message).update(left)
                await send(message)

            with working_for(tenant):
                await self.app(scope, receive, with_limits if left else send)


async def require_admin(request: Request) -> None:
    """Require an admin key.

    Raises:
        ForbiddenError: the caller's key is not an admin key.
    """
    caller: Caller = request.state.caller
    if not caller.admin:
        raise ForbiddenError(
            f"the key {caller.name!r} is not an admin key; create one with `qguide keys create "
            "NAME --admin`"
        )


def _given_key(headers: Headers) -> str | None:
    scheme, _, token = headers.get("authorization", "").partition(" ")
    if scheme.lower() == "bearer" and token.strip():
        return token.strip()
    return next((headers[name] for name in KEY_HEADERS if name in headers), None)

"""Admission: who may call, whether the server takes anything new, and how much of it.

The key is asked for before anything is read of a body, so that a stranger costs nothing. The
limits count after the body has come, so that whoever sends slowly takes nobody's place.
"""

from typing import Final

from fastapi import Request
from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from qnet.errors import QGuideError
from qnet.tenant import Tenant, working_for
from server.access.keys import Key
from server.access.rate_limits import Caller, Limiter, caller_of
from server.errors.table import known_error_response
from server.errors.types import ForbiddenError, OverLimitError, UnauthorizedError
from server.settings.settings import Settings

HEALTH: Final = frozenset({"/healthz", "/readyz"})
METRICS: Final = frozenset({"/metrics"})
DOCS: Final = frozenset({"/docs", "/docs/oauth2-redirect", "/redoc", "/openapi.json"})
PAGE: Final = frozenset({"/", "/playground"})
"""With all below /playground/: the page's files and its abilities, the same for everybody."""


class AdmissionMiddleware:
    """Refuses what comes while draining or without a key; health is open to all.

    The drain and the keys are those of the application's state.
    """

    def __init__(self, app: ASGIApp, *, settings: Settings) -> None:
        self.app = app
        self._settings = settings
        self._open = set(HEALTH)
        if settings.public_metrics:
            self._open |= METRICS
        if settings.public_docs:
            self._open |= DOCS

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request, or say why not."""
        if scope["type"] != "http" or self._is_open(scope["path"]):
            await self.app(scope, receive, send)
            return
        request = Request(scope)
        try:
            await self._serve(request, receive, send)
        except QGuideError as error:  # raised here: what routes raise is answered inside
            await known_error_response(request, error)(scope, receive, send)

    def _is_open(self, path: str) -> bool:
        is_page = path in PAGE or path.startswith("/playground/")
        return path in self._open or (self._settings.playground and is_page)

    async def _serve(self, request: Request, receive: Receive, send: Send) -> None:
        state = request.app.state
        caller = self._caller(request)
        request.state.account.key = caller.name if state.keys else None
        if request.scope["path"] not in METRICS:  # neither an end nor a flood hides those
            request.state.caller = caller
            state.drain.check()
        await self.app(request.scope, receive, send)

    def _caller(self, request: Request) -> Caller:
        keys = request.app.state.keys
        if keys is None:
            return caller_of(None, self._settings)
        given = _given_key(request)
        if given is None:
            raise UnauthorizedError(
                "there is no API key; send it as `Authorization: Bearer KEY` or `X-API-Key: KEY`"
            )
        key: Key | None = keys.find(given)
        if key is None:
            raise UnauthorizedError("nobody has this API key; ask the operator for one")
        return caller_of(key, self._settings)


class RateLimits:
    """Refuses what is over the caller's limits, and charges what was spent.

    The limiter is that of the application's state; what was admitted without a caller is free.
    """

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request within its caller's limits."""
        caller = scope.get("state", {}).get("caller")
        if caller is None:
            await self.app(scope, receive, send)
            return
        request = Request(scope)
        try:
            await self._serve(request, caller, receive, send)
        except OverLimitError as error:  # raised here: what routes raise is answered inside
            await known_error_response(request, error)(scope, receive, send)

    async def _serve(self, request: Request, caller: Caller, receive: Receive, send: Send) -> None:
        limiter: Limiter = request.app.state.limiter
        account = request.state.account
        tenant = Tenant(account.key or "", caller.cache_salt)
        async with limiter.admit(caller, account) as left:

            async def with_limits(message: Message) -> None:
                if message["type"] == "http.response.start":
                    MutableHeaders(scope=message).update(left)
                await send(message)

            with working_for(tenant):
                await self.app(request.scope, receive, with_limits)


async def require_admin(request: Request) -> None:
    """Let operators alone go on.

    Raises:
        ForbiddenError: the caller's key is no admin's.
    """
    caller: Caller = request.state.caller
    if not caller.admin:
        raise ForbiddenError(
            f"the key of {caller.name} is no admin's; `qguide keys create NAME --admin` makes one"
        )


def _given_key(request: Request) -> str | None:
    scheme, _, token = request.headers.get("authorization", "").partition(" ")
    if scheme.lower() == "bearer" and token.strip():
        return token.strip()
    return request.headers.get("x-api-key")

"""The door: whether the server takes anything new, who may call, and how much.

It stands before anything is read of a body, so a stranger costs nothing.
"""

from typing import Final

from fastapi import Request
from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from qnet.errors import QGuideError
from qnet.tenant import Tenant, working_for
from server.access.keys import Key
from server.access.rate_limits import Caller, caller_of
from server.errors.table import known_error_response
from server.errors.types import ForbiddenError, UnauthorizedError
from server.settings.settings import Settings

HEALTH: Final = frozenset({"/healthz", "/readyz"})
METRICS: Final = frozenset({"/metrics"})
DOCS: Final = frozenset({"/docs", "/docs/oauth2-redirect", "/redoc", "/openapi.json"})
PAGE: Final = frozenset({"/", "/playground"})
"""With all below /playground/: the page's files and its abilities, the same for everybody."""


class AdmissionMiddleware:
    """Refuses what comes while draining, without a key or over a limit; health is open to all.

    The drain, the keys and the limiter are those of the application's state.
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
        except QGuideError as error:  # of this door alone: what routes raise is answered inside
            await known_error_response(request, error)(scope, receive, send)

    def _is_open(self, path: str) -> bool:
        is_page = path in PAGE or path.startswith("/playground/")
        return path in self._open or (self._settings.playground and is_page)

    async def _serve(self, request: Request, receive: Receive, send: Send) -> None:
        state = request.app.state
        caller = self._caller(request)
        account = request.state.account
        account.key = caller.name if state.keys else None
        request.state.caller = caller
        if request.scope["path"] in METRICS:  # neither an end nor a flood keeps out who watches it
            await self.app(request.scope, receive, send)
            return
        state.drain.check()
        tenant = Tenant(account.key or "", caller.cache_salt)
        async with state.limiter.admit(caller, account) as left:

            async def with_limits(message: Message) -> None:
                if message["type"] == "http.response.start":
                    MutableHeaders(scope=message).update(left)
                await send(message)

            with working_for(tenant):
                await self.app(request.scope, receive, with_limits)

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

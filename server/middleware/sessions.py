"""Episode ids for agents that can set only a base URL or a header.

`/episodes/{id}/v1/…` is served as `/v1/…`, and `X-Session-ID` names the episode on any path. An id
that a request gives itself (`episode_id`, `X-QGuide-Episode-Id`) comes first, then the URL's, then
the header's: routers and frameworks may send `X-Session-ID` for reasons of their own.
"""

import re
from typing import Final
from urllib.parse import unquote_to_bytes

from fastapi import Request
from starlette.types import ASGIApp, Receive, Scope, Send

from qnet.errors import InvalidRequestError
from qnet.policies.session import HEADER
from server.errors.table import known_error_response
from server.messages.schemas import EPISODE_ID_PATTERN, MAX_EPISODE_ID_CHARACTERS

PREFIX: Final = "/episodes/"
_HEADER: Final = HEADER.lower().encode()
_ID: Final = re.compile(EPISODE_ID_PATTERN)


class SessionIds:
    """Reads the episode id of a request's URL or `X-Session-ID` into its state."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request, its path without the episode."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        named = _take_from_path(scope)
        place = f"the episode id in the path {PREFIX}ID/"
        if named is None:
            named, place = _header_of(scope), f"the header {HEADER}"
        if named and not _is_usable(named):
            error = InvalidRequestError(
                f"{place} has {len(named)} characters or a control character; send 1 to "
                f"{MAX_EPISODE_ID_CHARACTERS} printable characters, percent-encoded as in a URL"
            )
            await known_error_response(Request(scope), error)(scope, receive, send)
            return
        if named:
            scope.setdefault("state", {})["session_id"] = named
        await self.app(scope, receive, send)


def _take_from_path(scope: Scope) -> str | None:
    """The id of `/episodes/{id}/…`, which is cut from the path; None for any other path.

    The raw path is read, where a slash within an id is still percent-encoded.
    """
    if not scope["path"].startswith(PREFIX):
        return None
    raw: bytes = scope.get("raw_path") or scope["path"].encode()
    encoded, slash, rest = raw.partition(b"?")[0][len(PREFIX) :].partition(b"/")
    if not encoded or not slash:
        return None
    scope["raw_path"] = slash + rest
    scope["path"] = _decoded(scope["raw_path"])
    return _decoded(encoded)


def _header_of(scope: Scope) -> str | None:
    """The id in `X-Session-ID`, percent-encoded as QGuide itself sends it to upstreams."""
    for name, value in scope["headers"]:
        if name == _HEADER:
            return _decoded(value.strip())
    return None


def _decoded(encoded: bytes) -> str:
    return unquote_to_bytes(encoded).decode(errors="replace")


def _is_usable(named: str) -> bool:
    return len(named) <= MAX_EPISODE_ID_CHARACTERS and bool(_ID.fullmatch(named))

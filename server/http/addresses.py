"""Hosts and paths of requests: who is trusted to send them, and which route and episode they mean.

Base URLs of other services are Azure's paths, and those of clients that leave out `/v1`.
`/episodes/{id}/v1/…` is served as `/v1/…`, and `X-Session-ID` names the episode on any path. An id
that a request gives itself (`episode_id`, `X-QGuide-Episode-Id`) comes first, then the URL's, then
the header's: routers and frameworks may send `X-Session-ID` for reasons of their own.
`X-QGuide-Outcome` ends the episode after the step that has it, `X-QGuide-Earned` tells what it was
worth before; `/episodes/{id}/outcome` is served as `/v1/episodes/{id}/outcome`.

Coding agents name their session in headers of their own, which comes last: see
`qguide.server.episodes.service.Episodes.current`.
"""

import re
from collections.abc import Callable
from contextlib import suppress
from ipaddress import ip_address
from math import isfinite, nan
from typing import Final
from urllib.parse import unquote_to_bytes

from starlette.types import ASGIApp, Receive, Scope, Send

from qguide.qnet.errors import InvalidRequestError
from qguide.qnet.work import HEADER
from qguide.server.episodes.service import EARNED_HEADER, OUTCOME_HEADER
from qguide.server.http.errors import UntrustedHostError
from qguide.server.http.middleware import HttpMiddleware
from qguide.server.own_bodies.schemas import EPISODE_ID_PATTERN, MAX_EPISODE_ID_CHARACTERS
from qguide.server.settings.settings import Settings

ANY: Final = "*"
_FOREIGN: Final = re.compile(
    r"(?:/openai(?:/v1|/deployments/(?P<deployment>[^?]+?))?|/v1(?=/v1/))?(?:/v1)?"
    r"(?P<path>/(?:chat/completions|completions|responses|conversations|messages|models)(?:/.*)?)",
    re.DOTALL,
)
"""`/openai/deployments/NAME/…` and `/openai/v1/…` of Azure, `/v1/v1/…` of Anthropic's clients whose
base URL ends in `/v1`, and `/chat/completions` of OpenAI's whose base URL does not."""
PREFIX: Final = "/episodes/"
_HEADER: Final = HEADER.lower().encode()
_OUTCOMES: Final = "a number from 0 to 1, true or false, or post another reward to /v1/episodes/ID/outcome"
_EARNINGS: Final = "the episode's outcome if it had ended before this step, as a number"
_AGENTS: Final = (
    b"x-claude-code-session-id",
    b"x-qwen-code-session-id",
    b"thread-id",
    b"thread_id",
    b"session-id",
    b"session_id",
)
"""Headers in which agents name their session; Codex has its thread's name in all four of the last,
and a subagent's thread in the first two."""
_SUBAGENT: Final = b"x-claude-code-agent-id"
_ID: Final = re.compile(EPISODE_ID_PATTERN)
_NUMBER: Final = re.compile(r"[0-9.eE+-]{1,40}")
_TRUTHS: Final = {"true": 1.0, "false": 0.0}
_SHOWN: Final = 40


class TrustedHosts(HttpMiddleware):
    """Refuses requests whose Host header is not one of this server's names.

    A web page on evil.example can make that name resolve to 127.0.0.1 and then call this server
    as its own origin; the browser still sends `Host: evil.example`. An IP address in Host is
    therefore always safe. With API keys such a page has no key to send, so the check is made only
    if the operator lists trusted hosts.
    """

    def __init__(self, app: ASGIApp, *, settings: Settings) -> None:
        super().__init__(app)
        self._names = {"localhost", settings.host.lower(), *map(str.lower, settings.trusted_hosts)}
        self._any = ANY in self._names or bool(settings.keys_file and not settings.trusted_hosts)

    async def serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request if its Host header is trusted."""
        if not self._any:
            hosts = [value for name, value in scope["headers"] if name == b"host"]
            if not all(self._is_trusted(_name_in(host)) for host in hosts) or len(hosts) > 1:
                raise _untrusted(b", ".join(hosts))
        await self.app(scope, receive, send)

    def _is_trusted(self, name: str) -> bool:
        return name in self._names or name.endswith(".localhost") or _is_address(name)


def _untrusted(host: bytes) -> UntrustedHostError:
    return UntrustedHostError(
        f"the Host header is {host.decode('latin-1')[:80]!r}; this server accepts localhost, IP "
        "addresses and the names in QGUIDE_TRUSTED_HOSTS; add the name there "
        '(["qguide.example"]; ["*"] accepts any)'
    )


def _name_in(host: bytes) -> str:
    """The host name without its port, in lower case."""
    text = host.decode("latin-1").strip().lower()
    if text.startswith("["):
        return text[1:].partition("]")[0]
    return text.partition(":")[0].removesuffix(".")


def _is_address(name: str) -> bool:
    try:
        ip_address(name)
    except ValueError:
        return False
    return True


class BaseUrls(HttpMiddleware):
    """Serves the paths of other services as those under `/v1`.

    The name of a deployment is the model of a request whose body names none.
    """

    async def serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request by the path that it means."""
        found = _FOREIGN.fullmatch(scope["path"])
        if found and not scope["path"].startswith(f"/v1{found['path']}"):
            scope["path"] = f"/v1{found['path']}"
            if found["deployment"]:
                scope["state"]["account"].deployment = found["deployment"]
        await self.app(scope, receive, send)


class SessionIds(HttpMiddleware):
    """Reads a request's episode id, outcome and earnings into its state."""

    async def serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request, its path without the episode."""
        read = {
            "session_id": _session_of(scope),
            "agent_session": _agent_session(scope),
            "outcome": _number_in(scope, OUTCOME_HEADER, lambda said: 0 <= said <= 1, _OUTCOMES),
            "earned": _number_in(scope, EARNED_HEADER, isfinite, _EARNINGS),
        }
        given = {name: value for name, value in read.items() if value is not None}
        if given:
            scope.setdefault("state", {}).update(given)
        await self.app(scope, receive, send)


def _session_of(scope: Scope) -> str | None:
    """The episode that the URL names, or else the header."""
    named = _take_from_path(scope)
    place = f"the episode id in the path {PREFIX}ID/"
    if named is None:
        # Percent-encoded, as QGuide itself sends it to upstreams.
        header = _header_of(scope, _HEADER)
        named, place = _decoded(header) if header else None, f"the header {HEADER}"
    if named and not _is_usable(named):
        raise InvalidRequestError(
            f"{place} has {len(named)} characters or a control character; send 1 to "
            f"{MAX_EPISODE_ID_CHARACTERS} printable characters, percent-encoded as in a URL"
        )
    return named or None


def _agent_session(scope: Scope) -> str | None:
    """The session that a coding agent names by itself, with its subagent; None if unusable."""
    named = next(filter(None, (_header_of(scope, name) for name in _AGENTS)), None)
    if named is None:
        return None
    parts = [named.decode(errors="replace"), (_header_of(scope, _SUBAGENT) or b"").decode(errors="replace")]
    session = "/".join(filter(None, parts))
    return session if _is_usable(session) else None


def _number_in(scope: Scope, name: str, fits: Callable[[float], bool], remedy: str) -> float | None:
    """The number, or truth, that a header says; None without it."""
    header = _header_of(scope, name.lower().encode())
    if header is None:
        return None
    said = header.decode(errors="replace")
    with suppress(ValueError):
        number = _TRUTHS.get(said.lower(), float(said) if _NUMBER.fullmatch(said) else nan)
        if fits(number):
            return number
    raise InvalidRequestError(f"the header {name} is {said[:_SHOWN]!r}; send {remedy}")


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
    if rest == b"outcome":
        scope["raw_path"] = b"/v1" + raw
        scope["path"] = _decoded(scope["raw_path"].partition(b"?")[0])
        return None
    scope["raw_path"] = slash + rest
    scope["path"] = _decoded(scope["raw_path"])
    return _decoded(encoded)


def _header_of(scope: Scope, wanted: bytes) -> bytes | None:
    for name, value in scope["headers"]:
        if name == wanted:
            return bytes(value.strip())
    return None


def _decoded(encoded: bytes) -> str:
    return unquote_to_bytes(encoded).decode(errors="replace")


def _is_usable(named: str) -> bool:
    return len(named) <= MAX_EPISODE_ID_CHARACTERS and bool(_ID.fullmatch(named))

"""Host header check, which protects against DNS rebinding."""

from ipaddress import ip_address
from typing import Final

from fastapi import Request
from starlette.types import ASGIApp, Receive, Scope, Send

from qguide.server.errors.table import known_error_response
from qguide.server.errors.types import UntrustedHostError
from qguide.server.settings.settings import Settings

ANY: Final = "*"


class TrustedHosts:
    """Refuses requests whose Host header is not one of this server's names.

    A web page on evil.example can make that name resolve to 127.0.0.1 and then call this server
    as its own origin; the browser still sends `Host: evil.example`. An IP address in Host is
    therefore always safe. With API keys such a page has no key to send, so the check is made only
    if the operator lists trusted hosts.
    """

    def __init__(self, app: ASGIApp, *, settings: Settings) -> None:
        self.app = app
        self._names = {"localhost", settings.host.lower(), *map(str.lower, settings.trusted_hosts)}
        self._any = ANY in self._names or bool(settings.keys_file and not settings.trusted_hosts)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request if its Host header is trusted."""
        if scope["type"] == "http" and not self._any:
            hosts = [value for name, value in scope["headers"] if name == b"host"]
            if not all(self._is_trusted(_name_in(host)) for host in hosts) or len(hosts) > 1:
                await _refuse(b", ".join(hosts), scope, receive, send)
                return
        await self.app(scope, receive, send)

    def _is_trusted(self, name: str) -> bool:
        return name in self._names or name.endswith(".localhost") or _is_address(name)


async def _refuse(host: bytes, scope: Scope, receive: Receive, send: Send) -> None:
    error = UntrustedHostError(
        f"the Host header is {host.decode('latin-1')[:80]!r}; this server accepts localhost, IP "
        "addresses and the names in QGUIDE_TRUSTED_HOSTS; add the name there "
        '(["qguide.example"]; ["*"] accepts any)'
    )
    await known_error_response(Request(scope), error)(scope, receive, send)


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

"""Hosts and origins in settings."""

import re
from ipaddress import ip_address
from typing import Annotated, Final

from pydantic import AfterValidator

_HOST: Final = re.compile(r"\*|[A-Za-z0-9_]([A-Za-z0-9._-]*[A-Za-z0-9_])?")
_ORIGIN: Final = re.compile(r"https?://[^/*\s]+")


def is_loopback(host: str) -> bool:
    """True if only this machine reaches the address."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _origin(origin: str) -> str:
    if not _ORIGIN.fullmatch(origin):
        raise ValueError(f"{origin!r} is not an origin; write https://host or https://host:port")
    return origin


def _host_name(host: str) -> str:
    if not _HOST.fullmatch(host):
        raise ValueError(f"{host!r} is not a host name; leave out scheme, port and path")
    return host


Origin = Annotated[str, AfterValidator(_origin)]
HostName = Annotated[str, AfterValidator(_host_name)]

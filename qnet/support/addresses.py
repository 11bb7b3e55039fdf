"""Addresses in messages, without what may be a user, a password or a key."""

import re
from typing import Final

HIDDEN: Final = "…"
_SUSPECT: Final = re.compile(r"//|[@?]")
_SCHEME: Final = re.compile(r"^[A-Za-z][A-Za-z0-9+.-]*://")
_HOST: Final = re.compile(r"[A-Za-z0-9.-]+|\[[0-9A-Fa-f:.]+\]")


def without_secrets(text: str) -> str:
    """A text as it is unless it looks like an address, of which only scheme and host are kept.

    Everything up to the last `@` may be a password, and everything after the host a key. If an `@`
    follows a slash or a question mark, nobody can say which is which, and the host is hidden, too.
    """
    if not _SUSPECT.search(text):
        return text
    scheme = _SCHEME.match(text)
    if scheme is None:
        return HIDDEN
    user, at, rest = text[scheme.end() :].rpartition("@")
    host = _HOST.match(rest)
    if host is None or re.search(r"[/?#]", user):
        return scheme[0] + HIDDEN
    hidden = HIDDEN + at if at else ""
    remainder = rest[host.end() :]
    return f"{scheme[0]}{hidden}{host[0]}{'/' + HIDDEN if remainder else ''}"

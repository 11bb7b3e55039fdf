"""Names of Q models and their targets: pure values, replaced as a whole at every change.

A version is called `name@version`. Its plain name leads to one version of that name; an alias
leads to one model, or to several in shares, and an episode then stays with one of them.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from hashlib import sha256
from math import isfinite
from typing import Final

from qnet.errors import RoutingError, UnknownModelError

DEFAULT: Final = "default"

Shares = Mapping[str, float]
"""Names or versions, and the part of the episodes that each gets; they need not add up to 1."""

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/-]{0,63}")
_VERSION = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


@dataclass(frozen=True, slots=True)
class AliasTable:
    """Everything a request can ask for, and what it then gets.

    Attributes:
        versions: `name@version` of each Q model that is served.
        aliases: plain names and aliases, and where they lead.
        shadows: plain name -> what scores that model's requests a second time.

    Raises:
        RoutingError: a name that would lead nowhere, in a circle or to two things.
    """

    versions: tuple[str, ...] = ()
    aliases: Mapping[str, Shares] = field(default_factory=dict)
    shadows: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for alias, shares in self.aliases.items():
            if not _NAME.fullmatch(alias):
                raise RoutingError(f"{alias!r} is no name; use 1 to 64 letters, digits and ._/-")
            self._check_shares(alias, shares)
            self._check_ends(alias, (alias,))
        for name, target in self.shadows.items():
            if name not in self._plain_names:
                raise RoutingError(f"{name!r} is no Q model's name, so nothing can shadow it")
            if target not in self:
                raise RoutingError(self._nowhere(f"the shadow of {name!r}", target))

    def __contains__(self, name: str) -> bool:
        return name in self.versions or name in self.aliases

    def resolve(self, name: str, episode_id: str | None) -> str:
        """The version that a request gets; without an episode a split gives its first arm.

        Raises:
            UnknownModelError: the name leads nowhere.
        """
        if name not in self:
            raise UnknownModelError(
                f"there is no Q model {name!r}; served are {', '.join(sorted(self.aliases))}"
            )
        while name not in self.versions:
            name = choose_arm(name, self.aliases[name], episode_id)
        return name

    def reachable(self, name: str) -> set[str]:
        """The versions that a name leads to, for one episode or another."""
        if name in self.versions:
            return {name}
        return set().union(*(self.reachable(target) for target in self.aliases.get(name, ())))

    def add(self, version: str, *, replacing: bool) -> "AliasTable":
        """Also serve a version; its plain name leads to it if it is the first of that name.

        Args:
            replacing: the plain name moves to it, and the version it led to is dropped.
        """
        name = plain_name(version)
        if version in self.versions:
            raise RoutingError(f"{version} is served already; drop it or choose another version")
        if name in self.aliases and name not in self._plain_names:
            raise RoutingError(f"{name!r} is an alias; choose another name")
        former = next(iter(self.aliases.get(name, ())), None)
        versions = (*(v for v in self.versions if not replacing or v != former), version)
        moves = replacing or former is None
        aliases = {**self.aliases, name: {version: 1.0}} if moves else self.aliases
        return replace(self, versions=versions, aliases=aliases)

    def drop(self, version: str) -> "AliasTable":
        """Serve a version no more; its plain name goes with it if it was the last of that name."""
        if version not in self.versions:
            raise UnknownModelError(
                f"there is no version {version!r}; served are {', '.join(self.versions)}"
            )
        left = tuple(v for v in self.versions if v != version)
        name = plain_name(version)
        if name in map(plain_name, left):
            return replace(self, versions=left)
        aliases = {a: shares for a, shares in self.aliases.items() if a != name}
        shadows = {n: target for n, target in self.shadows.items() if n != name}
        return AliasTable(left, aliases, shadows)

    def move(self, alias: str, to: Shares) -> "AliasTable":
        """Let an alias, new or known, lead somewhere else."""
        return replace(self, aliases={**self.aliases, alias: dict(to)})

    def shadow(self, name: str, by: str | None) -> "AliasTable":
        """Score the requests of the Q model `name` a second time; None: no longer."""
        kept = {n: target for n, target in self.shadows.items() if n != name}
        return replace(self, shadows=kept if by is None else {**kept, name: by})

    @property
    def _plain_names(self) -> set[str]:
        return set(map(plain_name, self.versions))

    def _check_shares(self, alias: str, shares: Shares) -> None:
        if not shares or not all(isfinite(s) and s > 0 for s in shares.values()):
            raise RoutingError(f"the shares of {alias!r} are {dict(shares)}; give numbers above 0")
        own = alias in self._plain_names
        if own and (len(shares) > 1 or plain_name(next(iter(shares))) != alias):
            raise RoutingError(f"{alias!r} is a Q model's name; let it lead to one of its versions")

    def _check_ends(self, alias: str, path: tuple[str, ...]) -> None:
        for target in self.aliases[alias]:
            if target not in self:
                raise RoutingError(self._nowhere(repr(alias), target))
            if target in path:
                raise RoutingError(f"{' → '.join((*path, target))} leads in a circle")
            if target in self.aliases:
                self._check_ends(target, (*path, target))

    def _nowhere(self, what: str, target: str) -> str:
        known = sorted(self._plain_names)
        return f"{what} would lead to {target!r}; name one of {', '.join(known)}, or a version"


def choose_arm(alias: str, shares: Shares, episode_id: str | None) -> str:
    """The arm of an episode: always the same, and independent of its arm in another split."""
    arms = _boundaries(shares)
    first, _ = next(arms)
    if episode_id is None or len(shares) == 1:
        return first
    # JSON can spell half a character, which has no UTF-8.
    digest = sha256(f"{alias}\0{episode_id}".encode(errors="surrogatepass")).digest()
    point = int.from_bytes(digest[:8], "big") / 2**64
    return next((arm for arm, end in _boundaries(shares) if point < end), first)


def _boundaries(shares: Shares) -> Iterator[tuple[str, float]]:
    """Each arm and where its part of [0, 1) ends."""
    total, end = sum(shares.values()), 0.0
    for arm, share in shares.items():
        end += share
        yield arm, end / total


def shares_of(target: str | Shares) -> Shares:
    """An alias that leads to one model is a split with one arm."""
    return {target: 1.0} if isinstance(target, str) else target


def plain_name(version: str) -> str:
    """The part before the `@`."""
    return version.partition("@")[0]


def join(name: str, version: str) -> str:
    """The name of a version.

    Raises:
        RoutingError: a name or version of other characters than these may have.
    """
    if not _NAME.fullmatch(name) or not _VERSION.fullmatch(version):
        raise RoutingError(
            f"{name!r} and {version!r} are no name and version; use 1 to 64 letters, digits and "
            "._- (a name also /), a letter or digit first"
        )
    return f"{name}@{version}"

"""Alias table: immutable mapping from names to versions of Q models, replaced at every change.

A version is written `name@version`. Its plain name resolves to one version of that name. An alias
resolves to one model, or splits episodes between several; an episode then stays with one of them.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from hashlib import sha256
from math import isfinite
from typing import Final

from qguide.qnet.errors import RoutingError, UnknownModelError

DEFAULT: Final = "default"

Shares = Mapping[str, float]
"""Names or versions, and the share of episodes that each gets; they need not add up to 1."""

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/-]{0,63}")
_VERSION = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


@dataclass(frozen=True, slots=True)
class AliasTable:
    """The names that requests can use, and the versions they resolve to.

    Attributes:
        versions: `name@version` of each served Q model.
        aliases: plain names and aliases -> their targets.
        shadows: plain name -> the Q model that scores its requests a second time.
    """

    versions: tuple[str, ...] = ()
    aliases: Mapping[str, Shares] = field(default_factory=dict)
    shadows: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for alias, shares in self.aliases.items():
            if not _NAME.fullmatch(alias):
                raise RoutingError(f"{alias!r} is not a valid name; use 1 to 64 letters, digits and ._/-")
            self._check_shares(alias, shares)
            self._check_ends(alias, (alias,))
        for name, target in self.shadows.items():
            if name not in self._plain_names:
                raise RoutingError(
                    f"{name!r} is not the name of a Q model, so it cannot have a shadow; name one "
                    f"of {', '.join(sorted(self._plain_names))}"
                )
            if target not in self:
                raise RoutingError(self._nowhere(f"the shadow of {name!r}", target))

    def __contains__(self, name: str) -> bool:
        return name in self.versions or name in self.aliases

    def resolve(self, name: str, episode_id: str | None) -> str:
        """Resolve a name to a version; without an episode a split resolves to its first arm."""
        if name not in self:
            raise UnknownModelError(f"there is no Q model {name!r}; this server has {', '.join(sorted(self.aliases))}")
        while name not in self.versions:
            name = choose_arm(name, self.aliases[name], episode_id)
        return name

    def reachable(self, name: str) -> set[str]:
        """All versions that a name can resolve to."""
        if name in self.versions:
            return {name}
        return set().union(*(self.reachable(target) for target in self.aliases.get(name, ())))

    def add(self, version: str, *, replacing: bool) -> "AliasTable":
        """Add a version; its plain name resolves to it if it is the first of that name.

        Args:
            replacing: move the plain name to it, and drop the version that it resolved to.
        """
        name = plain_name(version)
        if version in self.versions:
            raise RoutingError(f"{version} is already served; drop it first or choose another version")
        if name in self.aliases and name not in self._plain_names:
            raise RoutingError(f"{name!r} is an alias; choose another name")
        former = next(iter(self.aliases.get(name, ())), None)
        versions = (*(v for v in self.versions if not replacing or v != former), version)
        moves = replacing or former is None
        aliases = {**self.aliases, name: {version: 1.0}} if moves else self.aliases
        return replace(self, versions=versions, aliases=aliases)

    def drop(self, version: str) -> "AliasTable":
        """Remove a version, and its plain name if it was the last of that name."""
        if version not in self.versions:
            raise UnknownModelError(f"there is no version {version!r}; this server has {', '.join(self.versions)}")
        left = tuple(v for v in self.versions if v != version)
        name = plain_name(version)
        if name in map(plain_name, left):
            return replace(self, versions=left)
        aliases = {a: shares for a, shares in self.aliases.items() if a != name}
        shadows = {n: target for n, target in self.shadows.items() if n != name}
        return AliasTable(left, aliases, shadows)

    def move(self, alias: str, to: Shares | None) -> "AliasTable":
        """Set the target of an alias, which may be new; None removes it."""
        if to is None:
            return self._without(alias)
        return replace(self, aliases={**self.aliases, alias: dict(to)})

    def shadow(self, name: str, by: str | None) -> "AliasTable":
        """Set the shadow of the Q model `name`; None removes it."""
        kept = {n: target for n, target in self.shadows.items() if n != name}
        return replace(self, shadows=kept if by is None else {**kept, name: by})

    def _without(self, alias: str) -> "AliasTable":
        if alias not in self.aliases:
            raise UnknownModelError(f"there is no alias {alias!r}; this server has {', '.join(sorted(self.aliases))}")
        if alias in self._plain_names:
            raise RoutingError(f"{alias!r} is the name of a Q model; drop its versions instead")
        if alias == DEFAULT:
            raise RoutingError(f"{DEFAULT!r} answers requests that name no Q model; point it to another one")
        return replace(self, aliases={a: to for a, to in self.aliases.items() if a != alias})

    @property
    def _plain_names(self) -> set[str]:
        return set(map(plain_name, self.versions))

    def _check_shares(self, alias: str, shares: Shares) -> None:
        if not shares or not all(isfinite(s) and s > 0 for s in shares.values()):
            raise RoutingError(f"the shares of {alias!r} are {dict(shares)}; send numbers greater than 0")
        own = alias in self._plain_names
        if own and (len(shares) > 1 or plain_name(next(iter(shares))) != alias):
            raise RoutingError(f"{alias!r} is the name of a Q model; point it to one of its own versions")

    def _check_ends(self, alias: str, path: tuple[str, ...]) -> None:
        for target in self.aliases[alias]:
            if target not in self:
                raise RoutingError(self._nowhere(repr(alias), target))
            if target in path:
                raise RoutingError(f"{' → '.join((*path, target))} is circular; point the alias to a Q model")
            if target in self.aliases:
                self._check_ends(target, (*path, target))

    def _nowhere(self, what: str, target: str) -> str:
        others = ", ".join(sorted(self.versions)) or "nothing, because no Q model is served"
        return f"{what} would point to {target!r}, which is not served then; choose {others}"


def choose_arm(alias: str, shares: Shares, episode_id: str | None) -> str:
    """The arm of an episode, by a hash: always the same, and independent of other splits."""
    arms = _boundaries(shares)
    first, _ = next(arms)
    if episode_id is None or len(shares) == 1:
        return first
    # An id from JSON may hold a lone surrogate, which has no UTF-8 encoding.
    digest = sha256(f"{alias}\0{episode_id}".encode(errors="surrogatepass")).digest()
    point = int.from_bytes(digest[:8], "big") / 2**64
    # Rounding may leave the last end below 1, and a point above it.
    return next((arm for arm, end in _boundaries(shares) if point < end), first)


def _boundaries(shares: Shares) -> Iterator[tuple[str, float]]:
    """Each arm and the upper end of its part of [0, 1)."""
    total, end = sum(shares.values()), 0.0
    for arm, share in shares.items():
        end += share
        yield arm, end / total


def shares_of(target: str | Shares) -> Shares:
    """Normalise a target: an alias of one model is a split with one arm."""
    return {target: 1.0} if isinstance(target, str) else target


def plain_name(version: str) -> str:
    """The name of a `name@version`."""
    return version.partition("@")[0]


def join(name: str, version: str) -> str:
    """Join name and version to `name@version`."""
    if not _NAME.fullmatch(name) or not _VERSION.fullmatch(version):
        raise RoutingError(
            f"{name!r} and {version!r} are not a valid name and version; use 1 to 64 letters, "
            "digits and ._- (in a name also /), starting with a letter or digit"
        )
    return f"{name}@{version}"

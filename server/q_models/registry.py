"""Registry of the served models: the names that requests can use, and what they resolve to.

A version of a Q model is written `name@version`. Its plain name resolves to one version of that name. An alias resolves
to one model, or splits episodes between several; an episode then stays with one of them. The table of names is
immutable, and replaced at every change.

A request resolves its version once, at its start, and holds it to its end. A version that is no longer served is closed
when its last request has released it: cache, weights and connections are freed on the thread that used them, after
whatever is still running there.
"""

import asyncio
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from hashlib import sha256
from math import isfinite
from time import time
from typing import Final

from structlog.contextvars import bound_contextvars

from qguide.qnet.errors import RoutingError, UnknownModelError
from qguide.qnet.policies.openai_compatible import OpenAICompatiblePolicy
from qguide.server.observability.metrics import Metrics
from qguide.server.observability.request_context import current_account
from qguide.server.q_models.served import NAME, Runtime, ServedPolicy, ServedQModel, kept_open, plain_name
from qguide.server.q_models.threaded import QModelLease, ShadowScoring
from qguide.server.settings.settings import DEFAULT_POLICY, EMBEDDED, NONE

DEFAULT: Final = "default"
_SHADOW_END_S: Final = 1.0

Shares = Mapping[str, float]
"""Names or versions, and the share of episodes that each gets; they need not add up to 1."""


@dataclass(frozen=True, slots=True)
class AliasTable:
    """The names that requests can use, and the versions they resolve to."""

    versions: tuple[str, ...] = ()
    aliases: Mapping[str, Shares] = field(default_factory=dict)  # plain names and aliases -> their targets
    # plain name -> the Q model that scores its requests a second time
    shadows: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for alias, shares in self.aliases.items():
            if not NAME.fullmatch(alias):
                raise RoutingError(f"{alias!r} is not a valid name; use 1 to 64 letters, digits and ._/-")
            self._check_shares(alias, shares)
            self._check_ends(alias, (alias,))
        for name, target in self.shadows.items():
            if name not in self._plain_names:
                raise RoutingError(
                    f"{name!r} is not the name of a Q model, so it cannot have a shadow; name one of "
                    f"{', '.join(sorted(self._plain_names))}"
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
        try:
            return replace(self, versions=versions, aliases=aliases)
        except RoutingError as error:
            if not replacing:
                raise
            remedy = f"load {version} without replace, move what points to {former}, and drop {former}"
            raise RoutingError(f"{error}; or {remedy}") from error

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
        if to is not None:
            return replace(self, aliases={**self.aliases, alias: dict(to)})
        if alias not in self.aliases:
            raise UnknownModelError(f"there is no alias {alias!r}; this server has {', '.join(sorted(self.aliases))}")
        if alias in self._plain_names:
            raise RoutingError(f"{alias!r} is the name of a Q model; drop its versions instead")
        if alias == DEFAULT:
            raise RoutingError(f"{DEFAULT!r} answers requests that name no Q model; point it to another one")
        return replace(self, aliases={a: shares for a, shares in self.aliases.items() if a != alias})

    def shadow(self, name: str, by: str | None) -> "AliasTable":
        """Set the shadow of the Q model `name`; None removes it."""
        kept = {n: target for n, target in self.shadows.items() if n != name}
        return replace(self, shadows=kept if by is None else {**kept, name: by})

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


class QModels:
    """All Q models and their alias table. Not thread-safe; owned by the event loop."""

    def __init__(self, metrics: Metrics) -> None:
        self.routes = AliasTable()
        self._models: dict[str, ServedQModel] = {}
        self._shadows = ShadowScoring(metrics)

    def __iter__(self) -> Iterator[ServedQModel]:
        return iter(self._models.values())

    @contextmanager
    def hold(self, name: str | None, *, episode_id: str | None = None) -> Iterator[QModelLease]:
        """Lease the Q model of that name for one request; None is the default."""
        model = self._models[self.routes.resolve(DEFAULT if name is None else name, episode_id)]
        with self.lease(model, episode_id=episode_id) as lease:
            yield lease

    @contextmanager
    def lease(self, model: ServedQModel, *, episode_id: str | None) -> Iterator[QModelLease]:
        """Lease a Q model for one request; it need not be one that requests can name."""
        named = self.routes.shadows.get(model.name)
        shadow = self._models[self.routes.resolve(named, episode_id)] if named else None
        shadow = None if shadow is model else shadow
        if episode_id is not None:
            current_account().episode_id = episode_id
        with (
            nullcontext() if episode_id is None else bound_contextvars(episode_id=episode_id),
            kept_open(model),
            kept_open(shadow),
        ):
            yield QModelLease(model, self._shadows, shadow)

    def add(self, model: ServedQModel, *, replacing: bool = False) -> None:
        """Serve an opened Q model; see `AliasTable.add`."""
        # Refused here, before anything has changed.
        routes = self.routes.add(model.id, replacing=replacing)
        self._models[model.id] = model
        self.change(routes)

    def configure(self, aliases: Mapping[str, Shares], shadows: Mapping[str, str]) -> None:
        """Set the configured aliases, which may refer to each other, and shadows."""
        known = self.routes.aliases
        self.change(replace(self.routes, aliases={**known, **aliases}, shadows=dict(shadows)))

    def change(self, routes: AliasTable) -> None:
        """Serve by another table from the next request on; running requests still complete with their version."""
        self.routes = routes
        for version in self._models.keys() - set(routes.versions):
            self._models.pop(version).retire()

    async def close(self) -> None:
        """Cancel running shadow scoring."""
        await self._shadows.close()


@dataclass(frozen=True, slots=True)
class Models:
    """All models that a request can name, and the threads they run on."""

    runtime: Runtime
    policy: ServedPolicy
    q_models: QModels
    paraphraser: ServedPolicy | None = None
    upstreams: tuple[ServedPolicy, ...] = ()  # all upstreams, including the default policy if it is one
    started_at: int = field(default_factory=lambda: int(time()))  # Unix time in seconds
    loading: asyncio.Lock = field(default_factory=asyncio.Lock)

    @property
    def healthy(self) -> bool:
        """True while every thread that answers requests is alive."""
        return self.runtime.thread.healthy and all(model.healthy for model in self.q_models)

    @property
    def waiting(self) -> int:
        """Number of requests with a score that waits for the device or a Q model's own thread."""
        return len(self.runtime.thread.waiting.union(*(model.waiting for model in self.q_models)))

    @property
    def cached_bytes(self) -> int:
        """Keys and values of the Q model that keeps most of them."""
        return max((model.cached_bytes for model in self.q_models), default=0)

    @property
    def remote(self) -> dict[str, OpenAICompatiblePolicy]:
        """Policies of all upstreams, by name."""
        return {one.name: one.upstream for one in self.upstreams if one.upstream}

    @property
    def policies(self) -> dict[str, ServedPolicy]:
        """Policies by name, the default first."""
        return {policy.name: policy for policy in (self.policy, *self.upstreams)}

    def find_policy(self, name: str | None) -> ServedPolicy:
        """Find a policy by its name or its upstream's model name; None is the URL's or the default."""
        name = current_account().deployment if name is None else name
        if name is None or name == DEFAULT_POLICY:
            return self.policy
        policies = self.policies
        of_model = [policy for policy in self.upstreams if policy.upstream_model == name]
        if name in policies or len(of_model) == 1:
            return policies.get(name) or of_model[0]
        if self._stand_in(policies.keys(), self.policy.name) is None:
            raise UnknownModelError(f"there is no policy {name!r}; this server has {', '.join(policies)}")
        return self.policy

    def find_reranker(self, name: str | None) -> str | None:
        """Name of the Q model for a foreign client, whose names may be another service's."""
        if name is None or name in self.q_models.routes:
            return name
        served = {one.name for one in self.q_models if one.source != NONE}
        return self._stand_in(served, DEFAULT) or name

    def q_model_for(self, policy: ServedPolicy, named: str | None) -> str | None:
        """Name of the Q model of a policy's step; None is the default.

        The embedded Q model knows one text game. Unless somebody names it, it scores only what the embedded policy
        draws.
        """
        default = self.q_models.routes.aliases.get(DEFAULT, {})
        if named or self.runtime.settings.q_models or policy.source == EMBEDDED or EMBEDDED not in default:
            return named
        return NONE

    def _stand_in(self, served: Collection[str], default: str) -> str | None:
        """The model that serves requests for unknown ones, which the caller is told; None for none."""
        unknown = self.runtime.settings.unknown_models
        if unknown == "error" or (unknown == "only" and len(served) != 1):
            return None
        name = next(iter(served)) if len(served) == 1 else default
        current_account().stand_in = name
        return name

    def give_up(self, model: ServedQModel) -> None:
        """Close an opened Q model that is not served; a version of its name and id may be."""
        model.retire(keep_series=any(other.id == model.id for other in self.q_models))

    async def close(self) -> None:
        """Stop all threads and connections; does not wait for a shadow that hangs."""
        await self.q_models.close()
        for upstream in self.remote.values():
            await upstream.close()
        self.runtime.thread.close()
        self.runtime.shadow_thread.close(timeout_s=_SHADOW_END_S)
        for model in self.q_models:
            model.close()
        await asyncio.to_thread(self.runtime.metrics.tracing.close)

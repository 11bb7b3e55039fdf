"""Work for one request: its context, which reaches policies and scorers in context variables, and the tokens it costs.

So no caller of a scorer or a policy needs to hand it through, and policies know nothing of episodes
or of OpenTelemetry:

- the caller, as far as caches and the device tell callers apart; jobs, which have none, run as
  `NOBODY`;
- the group of work whose parts are cancelled together;
- the episode, sent as `X-Session-ID`: a router in front of several replicas sends the requests of
  one session to one replica, which has the episode's prefix cached;
- the W3C trace context, sent as `traceparent` and `tracestate`, so that an upstream's spans belong
  to the trace of the request;
- who takes the candidates of a draw one by one, as each has finished, while others are being drawn;
- the outlet through which the caller gets the answer as a stream, while it is still being drawn;
- the usage of each request to an upstream, which comes back this way. A draw may take several: if
  one of them fails, the candidates of the others are dropped, and with them the usage that they
  carry, though it was paid for. Here it is collected all the same.
"""

import asyncio
import json
import math
import re
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any, Final, TypeVar
from urllib.parse import quote

from pydantic import BaseModel, Field

T = TypeVar("T")
_MILLION = 1_000_000


@dataclass(frozen=True, slots=True)
class TokenUsage:
    """Token usage of one request to an upstream, as the upstream counts it.

    Attributes:
        cached_tokens: how many of the prompt's it had already.
        completion_details: what it says of the completion tokens, for example how many of them were thoughts.
        replica: the server that answered, if a router says so; not compared.
        cost: if the upstream says it.
        written_tokens: how many of the prompt's it put into its cache, if it says so.
    """

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int = 0
    completion_details: Mapping[str, int] = field(default_factory=dict, hash=False)
    replica: str = field(default="", compare=False)
    cost: float | None = None
    written_tokens: int = 0

    @property
    def tokens(self) -> int:
        """Tokens read and generated."""
        return self.prompt_tokens + self.completion_tokens


NOTHING: Final = TokenUsage(0, 0)


def total_of(usages: Sequence[TokenUsage]) -> TokenUsage:
    """Sum of the usage of several requests."""
    details: Counter[str] = Counter()
    for spent in usages:
        details.update(spent.completion_details)
    return TokenUsage(
        prompt_tokens=sum(spent.prompt_tokens for spent in usages),
        completion_tokens=sum(spent.completion_tokens for spent in usages),
        cached_tokens=sum(spent.cached_tokens for spent in usages),
        completion_details=dict(details),
        cost=sum_of_known([spent.cost for spent in usages]),
        written_tokens=sum(spent.written_tokens for spent in usages),
    )


def sum_of_known(costs: Sequence[float | None]) -> float | None:
    """Sum of the costs that are known; None if none is."""
    known = [cost for cost in costs if cost is not None]
    return sum(known) if known else None


class Prices(BaseModel, frozen=True, extra="forbid"):
    """Prices per million tokens, in any currency.

    Attributes:
        prompt: of tokens read.
        completion: of tokens generated.
        cached_prompt: of tokens read from the upstream's cache; None is the price of `prompt`.
        written_prompt: of tokens written to it, likewise.
    """

    prompt: float = Field(ge=0)
    completion: float = Field(ge=0)
    cached_prompt: float | None = Field(default=None, ge=0)
    written_prompt: float | None = Field(default=None, ge=0)

    def cached_cost_of(self, spent: TokenUsage) -> float:
        """Cost of what was read from the cache."""
        price = self.prompt if self.cached_prompt is None else self.cached_prompt
        return spent.cached_tokens * price / _MILLION

    def written_cost_of(self, spent: TokenUsage) -> float:
        """Cost of what was written to the cache."""
        price = self.prompt if self.written_prompt is None else self.written_prompt
        return spent.written_tokens * price / _MILLION

    def cost_of(self, spent: TokenUsage) -> float:
        """Cost of some tokens."""
        fresh_tokens = spent.prompt_tokens - spent.cached_tokens - spent.written_tokens
        fresh = fresh_tokens * self.prompt + spent.completion_tokens * self.completion
        return fresh / _MILLION + self.cached_cost_of(spent) + self.written_cost_of(spent)


@dataclass(frozen=True, slots=True)
class UpstreamCalls:
    """Requests of a scorer to its upstream, and their tokens as the upstream counts them.

    Attributes:
        calls: requests that the upstream answered.
        cached_calls: requests that an earlier answer made unnecessary.
    """

    calls: int = 0
    cached_calls: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0

    def __add__(self, other: "UpstreamCalls") -> "UpstreamCalls":
        return UpstreamCalls(
            self.calls + other.calls,
            self.cached_calls + other.cached_calls,
            self.prompt_tokens + other.prompt_tokens,
            self.completion_tokens + other.completion_tokens,
        )


@contextmanager
def _set(variable: ContextVar[T], value: T) -> Iterator[None]:
    token = variable.set(value)
    try:
        yield
    finally:
        variable.reset(token)


@dataclass(frozen=True, slots=True)
class Tenant:
    """A caller.

    Attributes:
        name: callers of different names take turns at the device.
        cache_salt: what is cached under one salt is never found under another, so that cached
            tokens or a fast answer do not tell a caller what others have asked.
        request: the request that is worked for, as far as it can be told from others; a request may have many scores.
    """

    name: str = ""
    cache_salt: str = ""
    request: object = field(default=None, compare=False, repr=False)


NOBODY: Final = Tenant()
_tenant: ContextVar[Tenant] = ContextVar("tenant", default=NOBODY)


def current_tenant() -> Tenant:
    """The caller that the running task works for."""
    return _tenant.get()


def working_for(tenant: Tenant) -> AbstractContextManager[None]:
    """Within this, and in tasks that begin within, the work is for `tenant`."""
    return _set(_tenant, tenant)


_group: ContextVar[object | None] = ContextVar("work_group", default=None)


async def all_of(works: Sequence[Coroutine[Any, Any, T]], *, at_once: int | None = None) -> list[T]:
    """Run the works concurrently; if one fails the others are cancelled.

    Where candidates are taken as they finish, a failure costs those of its work only: it is raised once the others have
    ended. Of a request that is refused all M are on their way by then, and a filter may refuse one answer alone.

    Args:
        at_once: most that have begun and not ended; None begins all of them at once, which keeps
            everything else on the event loop waiting for their first steps.
    """
    places = asyncio.Semaphore(at_once or max(1, len(works)))

    async def in_turn(work: Coroutine[Any, Any, T]) -> T:
        async with places:
            return await work

    with one_group():  # inherited by the tasks, and by theirs
        tasks = [asyncio.ensure_future(in_turn(work)) for work in works]
    try:
        if taker():
            await asyncio.gather(*tasks, return_exceptions=True)
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for work in works:
            work.close()  # those that never had their turn


def one_group() -> AbstractContextManager[None]:
    """Within this, and in tasks that begin within, all work is of one group."""
    return _set(_group, _group.get() or object())


def work_group() -> object | None:
    """Identity of the outermost `all_of` or `one_group` around the caller; None outside.

    Tasks of one group are cancelled together as soon as one fails, unless candidates are taken as
    they finish, so none of them may wait for the failure of another.
    """
    return _group.get()


Take = Callable[[list[Any]], None]
"""Takes candidates that have finished."""
_take: ContextVar[Take | None] = ContextVar("take", default=None)


def taker() -> Take | None:
    """The taker of candidates as they finish; None if a draw is wanted as a whole."""
    return _take.get()


def taken_by(take: Take | None) -> AbstractContextManager[None]:
    """Within this, and in tasks that begin within, candidates are handed over as they finish."""
    return _set(_take, take)


class Outlet:
    """A caller's stream, as far as those who draw its answer have a part in it.

    Pieces of a candidate go on as they come where nothing will be chosen; after the first one nothing is asked again.
    Until then an upstream that has refused is asked again in silence, so that its error has a status of its own.

    Args:
        first_s: time until the caller gets a sign of life.
        takes_pieces: the caller's dialect can be written piece by piece.
    """

    def __init__(self, first_s: float, *, takes_pieces: bool) -> None:
        self.is_open = self.has_begun = False
        self._takes_pieces = takes_pieces
        self._first_s = first_s
        self._clock = asyncio.get_running_loop().time
        self._due = self._clock() + first_s
        self._pieces: list[Any] = []
        self._changed = asyncio.Event()

    def tell(self, piece: Any) -> None:
        """Send a piece on."""
        self.has_begun = True
        self._pieces.append(piece)
        self.wake()

    def refused(self) -> None:
        """Keep silent until the upstream is asked again."""
        self._due = math.inf

    def asked(self) -> None:
        """An upstream that had refused is asked again."""
        self._due = min(self._due, self._clock() + self._first_s)

    @contextmanager
    def opened(self) -> Iterator[None]:
        """Within this, pieces go on."""
        self.is_open = self._takes_pieces
        try:
            yield
        finally:
            self.is_open = False

    def take(self) -> list[Any]:
        """Pieces that came since the last call."""
        self._changed.clear()
        come, self._pieces = self._pieces, []
        return come

    def wake(self) -> None:
        """End the wait."""
        self._changed.set()

    async def wait(self, timeout_s: float) -> None:
        """Wait for a piece, or for `wake`."""
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._changed.wait()

    async def silence(self) -> None:
        """Wait for `wake` until there is something to send."""
        while not self._changed.is_set() and (left_s := self._due - self._clock()) > 0:
            await self.wait(min(left_s, self._first_s))


_outlet: ContextVar[Outlet | None] = ContextVar("outlet", default=None)


def current_outlet() -> Outlet | None:
    """The outlet of the answer that is being drawn; None if it is wanted as a whole."""
    return _outlet.get()


def flowing_to(outlet: Outlet) -> AbstractContextManager[None]:
    """Within this, and in tasks that begin within, what is drawn goes to this outlet."""
    return _set(_outlet, outlet)


SESSION_HEADER: Final = "X-Session-ID"
_SAFE: Final = "/:@!$*+,;=()'&[]"

_session: ContextVar[str] = ContextVar("session", default="")
TRACEPARENT: Final = "traceparent"
TRACESTATE: Final = "tracestate"
_PARENT: Final = re.compile(r"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}(-[ -~]{0,64})?")
_STATE: Final = re.compile(r"[\t -~]{1,512}")
_NONE: Final[Mapping[str, str]] = {}
_trace: ContextVar[Mapping[str, str]] = ContextVar("trace_context", default=_NONE)
_collecting: ContextVar[list[TokenUsage] | None] = ContextVar("usage", default=None)


def in_session(session_id: str) -> AbstractContextManager[None]:
    """Requests sent within, also by tasks that begin within, belong to this session."""
    return _set(_session, session_id)


def current_session() -> str:
    """The id of the current session; "" outside of any."""
    return _session.get()


def session_headers() -> dict[str, str]:
    """The header of the current session; empty outside of any.

    Characters that a header cannot carry are percent-encoded.
    """
    session_id = current_session()
    return {SESSION_HEADER: quote(session_id, safe=_SAFE)} if session_id else {}


def cache_salt_of(body: Mapping[str, Any]) -> dict[str, str]:
    """The salt to send; a caller that gives one of its own divides its own cache further."""
    salt = current_tenant().cache_salt
    if not salt:
        return {}
    given = json.dumps(body.get("cache_salt"))
    return {"cache_salt": sha256(f"{salt}\0{given}".encode()).hexdigest()}


def in_trace(headers: Mapping[str, str]) -> AbstractContextManager[None]:
    """Requests sent within, also by tasks that begin within, carry the trace of these headers if it is well-formed."""
    parent, state = headers.get(TRACEPARENT, ""), headers.get(TRACESTATE, "")
    told = {TRACEPARENT: parent} | ({TRACESTATE: state} if _STATE.fullmatch(state) else {})
    return _set(_trace, told if _PARENT.fullmatch(parent) else _NONE)


def trace_headers() -> Mapping[str, str]:
    """The headers of the current trace; empty outside of any."""
    return _trace.get()


@contextmanager
def collect_usage() -> Iterator[list[TokenUsage]]:
    """Collect the usage of all requests answered within, by this task and those it starts."""
    outer, inner = _collecting.get(), list[TokenUsage]()
    try:
        with _set(_collecting, inner):
            yield inner
    finally:
        if outer is not None:
            outer.extend(inner)


def record_usage(spent: TokenUsage) -> None:
    """Add the usage of one answer to the running collections."""
    collecting = _collecting.get()
    if collecting is not None:
        collecting.append(spent)

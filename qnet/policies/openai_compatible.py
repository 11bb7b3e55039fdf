"""Policy behind a model's server: vLLM, SGLang, OpenAI, Anthropic or another.

M candidates are one request with `n`, so that the upstream reads the history once. An upstream
that keeps refusing `n` or returning fewer choices gets parallel requests for some minutes; one
whose dialect (`qguide.qnet.policies.upstream_dialects`) has no `n` always gets them.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Self

import httpx
import stamina
from pydantic import SecretStr

from qguide.qnet.dialects.shapes import Json
from qguide.qnet.errors import (
    InvalidCandidatesError,
    UpstreamError,
    UpstreamRefusedError,
    UpstreamTimeoutError,
    UpstreamUnavailableError,
)
from qguide.qnet.policies.answer_parsing import PassedEvents, events_in, is_stream, parse, read_stream
from qguide.qnet.policies.answers import Completion, Refusal, object_in
from qguide.qnet.policies.circuits import CircuitOpenError, NSupport, UpstreamCall, UpstreamCircuits, refusal
from qguide.qnet.policies.failures import FORBIDDEN, failure_of, refused_parameters, stream_failure, without_refused
from qguide.qnet.policies.upstream_dialects import CHAT, Beside, Dialect, build_dialect
from qguide.qnet.policies.upstream_http import UnreachableError, UpstreamHttp, replica_of
from qguide.qnet.policies.upstream_settings import UpstreamLimits, UpstreamSettings
from qguide.qnet.types import Candidate, History, Sampling
from qguide.qnet.work import all_of, cache_salt_of, current_outlet, one_group, record_usage, taker

_FIRST_WAIT_S = 0.1
_NO_ROUTE = (404, 405, 501)
_OPENING_BYTES = 65_536  # of a stream that is given up; those that tell the prompt's tokens do so in their first events
_CACHED_FROM = 4096  # characters, about 1,024 tokens: Anthropic caches no shorter prompt

_log = logging.getLogger(__name__)
_SEEDS = 2**63  # upstreams take a seed of 64 bits with a sign


class OpenAICompatiblePolicy:
    """Draws from one model of one upstream.

    Errors name the upstream by `name` and never its address or key.

    Args:
        url: base URL, to which the dialect's path is appended; the operator's, never a caller's.
        takes_n: False sends one request per candidate.
        dialect: form of requests and answers; None is chat completions.
        takes_cache_salt: True sends the caller's, which vLLM knows and OpenAI refuses.
        caches: it caches prompts up to a breakpoint, which the first candidate writes.
        streams: ask for answers as streams, so that only silence is a timeout.
    """

    def __init__(
        self,
        name: str,
        *,
        url: str,
        model: str,
        api_key: str | None = None,
        takes_n: bool = True,
        dialect: Dialect | None = None,
        takes_cache_salt: bool = False,
        caches: bool = False,
        streams: bool = False,
        limits: UpstreamLimits | None = None,
        transport: httpx.AsyncBaseTransport | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.name = name
        self.model = model
        self._dialect = dialect = dialect or CHAT
        self._takes_n = NSupport(name, is_supported=takes_n and dialect.takes_n, clock=clock)
        self._takes_cache_salt = takes_cache_salt
        self._marked = dialect.marked if caches else None
        self._as_stream = dialect.as_stream if streams else {}
        self._refused: set[frozenset[str]] = set()
        self._limits = limits = limits or UpstreamLimits()
        self._circuits = UpstreamCircuits(failures=limits.breaker_failures, open_s=limits.breaker_open_s, clock=clock)
        self._http = UpstreamHttp(name, url, dialect.headers_with(api_key), limits=limits, transport=transport)

    @classmethod
    def of(
        cls, name: str, upstream: UpstreamSettings, api_key: SecretStr | None, limits: UpstreamLimits, **more: Any
    ) -> Self:
        """The policy of an upstream's settings; nothing is sent before the first request."""
        return cls(
            name,
            url=str(upstream.url),
            model=upstream.model,
            api_key=api_key.get_secret_value() if api_key else None,
            takes_n=upstream.n == "one_request",
            dialect=build_dialect(upstream.dialect, upstream.max_tokens_name),
            caches=upstream.caches,
            limits=limits,
            **more,
        )

    async def sample(self, history: History, *, n: int, sampling: Sampling) -> list[Candidate]:
        """Draw `n` candidates.

        Raises:
            InvalidCandidatesError: n is below 1.
            HistoryTooLongError: the upstream says that the history leaves no room for a reply.
            UpstreamRefusedError: the upstream says that the request is wrong.
            UpstreamError: it failed, was silent, is unreachable or busy.
        """
        if n < 1:
            raise InvalidCandidatesError(f"n is {n}; draw at least 1 candidate")
        # For the breaker, which counts the failures of one step once.
        with one_group():
            return await self._sample(history, n, sampling)

    async def count_prompt(self, history: History, sampling: Sampling) -> int | None:
        """Number of a prompt's tokens as the upstream counts; None if it has no route for that."""
        if (route := self._dialect.counting) is None:
            return None
        if (told := await self._ask_beside(route, history, sampling)) is None:
            return None
        counted = told.get(route.answer)
        if not isinstance(counted, int) or counted < 0:
            raise UpstreamError(f"upstream {self.name} did not answer with a number of tokens")
        return counted

    async def compact(self, history: History, sampling: Sampling) -> Json | None:
        """A compaction as the upstream makes it; None if it has no route for that."""
        if (route := self._dialect.compacting) is None:
            return None
        told = await self._ask_beside(route, history, sampling)
        if told is not None and not isinstance(told.get(route.answer), list):
            raise UpstreamError(f"upstream {self.name} did not answer with a compaction")
        return told

    async def _ask_beside(self, route: Beside, history: History, sampling: Sampling) -> Json | None:
        """The answer of a route that draws nothing; None if the upstream does not have it."""
        body = self._dialect.request_body(self.model, history, n=1, sampling=sampling)
        headers = self._dialect.request_headers(history, sampling)
        path, body = self._dialect.placed(route.path, {n: v for n, v in body.items() if n in route.fields})
        return await self.ask(path, body, headers)

    async def ask(self, path: str, body: Json, headers: dict[str, str]) -> Json | None:
        """The answer of any route that takes and gives JSON; None if the upstream does not have it."""
        if self._takes_cache_salt:
            body = body | cache_salt_of(body)
        response = await self._http.post(path, body, headers)
        if response.status_code in _NO_ROUTE:
            return None
        if response.status_code != 200:
            raise await failure_of(response, self.name, is_patient=self._limits.is_patient)
        return object_in(response.content)[0] or {}

    async def forward(
        self, method: str, path: str, content: bytes, kind: str, query: Mapping[str, str]
    ) -> httpx.Response:
        """The answer to a caller's own request, whatever it is, on a path that the operator allows."""
        headers = {"Content-Type": kind} if kind else {}
        response = await self._http.send(method, path, content, headers, query=query, is_parsed=False)
        if response.status_code in FORBIDDEN:
            raise await failure_of(response, self.name, is_patient=False)
        return response

    async def _sample(self, history: History, n: int, sampling: Sampling) -> list[Candidate]:
        if sampling.first_greedy and n > 1 and sampling.temperature != 0:
            greedy = replace(sampling, temperature=0.0, first_greedy=False)
            sampled = replace(sampling, first_greedy=False)
            if self._shares_cache(history):
                return await self._draw_apart(history, [greedy, *_seeded(sampled, range(n - 1))])
            groups = await all_of([self._draw(history, 1, greedy), self._draw(history, n - 1, sampled)])
            return [drawn for group in groups for drawn in group]
        if sampling.first_greedy:
            sampling = replace(sampling, temperature=0.0)
        return await self._draw(history, n, sampling)

    @property
    def circuit_open(self) -> bool:
        """True after too many failures in a row: everybody's requests are refused, but a probe."""
        return self._circuits.are_open

    async def health_problem(self) -> str | None:
        """Reason why the upstream cannot be used; see `UpstreamHttp`."""
        problem = await self._http.health_problem()
        if problem is not None:
            self._circuits.checked(is_well=not problem)
        return problem

    async def close(self) -> None:
        """Let go of the connections."""
        await self._http.close()

    async def _draw(self, history: History, n: int, sampling: Sampling) -> list[Candidate]:
        if n == 1:
            return await self._ask(history, 1, sampling)
        if not self._takes_n or taker():  # in one request the slowest would hold up the others
            return await self._draw_apart(history, _seeded(sampling, range(n)))
        refusal: UpstreamRefusedError | None = None
        try:
            drawn = await self._ask(history, n, sampling)
        except UpstreamRefusedError as error:
            # It may be `n` that was refused. One alone shows it, and is a candidate.
            refusal = error
            drawn = await self._ask(history, 1, sampling)
        if len(drawn) == n:
            self._takes_n.succeed()
            return drawn
        self._takes_n.fail(refusal)
        return drawn + await self._draw_apart(history, _seeded(sampling, range(len(drawn), n)))

    async def _draw_apart(self, history: History, samplings: Sequence[Sampling]) -> list[Candidate]:
        """One request per candidate.

        If the upstream caches the prompt, the others wait until it begins the first answer: from
        then on they find the prompt in the cache.
        """
        if len(samplings) == 1 or not self._shares_cache(history):
            asked = [self._ask(history, 1, sampling) for sampling in samplings]
            return [drawn for [drawn] in await all_of(asked)]
        begun = asyncio.Event()

        async def first() -> list[Candidate]:
            try:
                return await self._ask(history, 1, samplings[0], begun)
            finally:
                # Also after a failure, else the others would wait for ever.
                begun.set()

        async def later(sampling: Sampling) -> list[Candidate]:
            await begun.wait()
            return await self._ask(history, 1, sampling, begun)

        rest = [later(sampling) for sampling in samplings[1:]]
        return [drawn for [drawn] in await all_of([first(), *rest])]

    def _shares_cache(self, history: History) -> bool:
        """True if the upstream caches a prompt, and this one is long enough for it."""
        return self._marked is not None and sum(len(m.text) for m in history) >= _CACHED_FROM

    async def _ask(
        self, history: History, n: int, sampling: Sampling, begun: asyncio.Event | None = None
    ) -> list[Candidate]:
        """At most `n` candidates from one request, retried where that is safe; `begun` is set once an answer begins."""
        body = self._dialect.request_body(self.model, history, n=n, sampling=sampling)
        if self._marked and self._shares_cache(history):
            body = self._marked(body)
        headers = self._dialect.request_headers(history, sampling)
        body |= (cache_salt_of(body) if self._takes_cache_salt else {}) | {**self._as_stream}
        failures: list[Exception] = []
        outlet = current_outlet()

        def wait_before_retry(error: Exception) -> bool | float:
            failures.append(error)
            wait_s = self._wait_before_retry(error) if not (outlet and outlet.has_begun) else False
            if outlet and wait_s:
                outlet.refused()
            return wait_s

        drawn: list[Candidate] = []
        try:
            async for attempt in stamina.retry_context(
                on=wait_before_retry,
                attempts=None if self._limits.is_patient else self._limits.retries + 1,
                timeout=self._limits.patience_s,
                wait_initial=_FIRST_WAIT_S,
                wait_max=self._limits.longest_wait_s,
                wait_jitter=_FIRST_WAIT_S,
            ):
                with attempt:
                    if outlet:
                        outlet.asked()
                    drawn = await self._ask_taken(body, headers, begun)
        except _CircuitOpenedError:  # before a retry: the request's own failure says more
            raise failures[0] from None
        drawn = self._dialect.ended(drawn[:n], sampling)
        if take := taker():
            take([replace(one, greedy=sampling.temperature == 0) for one in drawn])
        return drawn

    def _wait_before_retry(self, error: Exception) -> bool | float:
        if not isinstance(error, UpstreamError) or not error.retriable:
            return False
        if not error.retry_after_s:
            return True
        longest_wait_s = self._limits.patience_s or self._limits.longest_wait_s
        return error.retry_after_s <= longest_wait_s and error.retry_after_s

    async def _ask_taken(
        self, body: dict[str, Any], headers: dict[str, str], begun: asyncio.Event | None
    ) -> list[Candidate]:
        """Candidates from one request, without what the upstream refuses to take or to do."""
        refused: set[frozenset[str]] = set()
        while True:
            sent, left_out = without_refused(body, self._refused | refused)
            try:
                drawn = await self._ask_once(sent, headers, begun)
            except UpstreamRefusedError as error:
                named = refused_parameters(error, sent)
                if named <= refused:
                    raise
                refused |= named
                continue
            # Not before: a request that fails either way says nothing of its parameters.
            for names in refused - self._refused:
                _log.warning("upstream %s refuses %s, and is asked without", self.name, " with ".join(sorted(names)))
            self._refused |= refused
            return [replace(one, left_out=left_out) for one in drawn] if left_out else drawn

    async def _ask_once(
        self, body: dict[str, Any], headers: dict[str, str], begun: asyncio.Event | None
    ) -> list[Candidate]:
        """Candidates from one request, whose outcome is told to the breaker.

        JSON that is no completion is not a failure to the breaker: this request may be the cause.
        """
        admission = await self._admit()
        # Cancelled, or not readable: neither says whether the upstream is well.
        outcome = self._circuits.abandon
        try:
            path, content = self._dialect.placed(self._dialect.path, body)
            response = await self._http.post(
                path, content, headers, begun=begun, passed=self._passed(), cut_off=self._cut_off
            )
            if response.status_code != 200:
                outcome = self._circuits.fail if response.is_server_error else self._circuits.succeed
                raise await failure_of(response, self.name, is_patient=self._limits.is_patient)
            completion = await self._read(response)
            record_usage(replace(completion.usage, replica=replica_of(response)))
            if completion.candidates:
                outcome = self._circuits.succeed
                return completion.candidates
            # No JSON object at all: a proxy or a broken server speaks, whatever was asked.
            if not completion.is_object:
                outcome = self._circuits.fail
            raise UpstreamError(f"upstream {self.name} did not answer with a {self._dialect.answer}")
        except UpstreamError as error:
            # Its first clause: what happened. Of what a server says in the failures that count nothing is quoted.
            admission.failure = str(error).removeprefix(f"upstream {self.name} ").partition(";")[0]
            if isinstance(error, UpstreamTimeoutError):
                outcome = self._circuits.time_out
            elif isinstance(error, UnreachableError):
                outcome = self._circuits.fail
            raise
        finally:
            outcome(admission)

    def _passed(self) -> PassedEvents | None:
        """Takes the events of an answer that goes on to the caller as it comes; None if it does not."""
        outlet, deltas = current_outlet(), self._dialect.deltas
        return PassedEvents(deltas(), outlet.tell) if outlet and outlet.is_open and deltas else None

    def _cut_off(self, arrived: bytes) -> None:
        """Count what a stream had told of its usage when it was given up."""
        record_usage(self._dialect.usage_in(events_in(arrived[:_OPENING_BYTES])))

    async def _read(self, response: httpx.Response) -> Completion:
        if not is_stream(response):
            return await parse(self._dialect.read_answer, response.content)
        read = await parse(partial(read_stream, self._dialect), response.content)
        if isinstance(read, Refusal):
            raise stream_failure(read, self.name)
        if not read.candidates and read.is_object:
            raise UnreachableError(f"upstream {self.name} broke off its answer", retriable=True)
        return read

    async def _admit(self) -> UpstreamCall:
        try:
            return await self._circuits.admit()
        except CircuitOpenError as error:
            raise _CircuitOpenedError(
                refusal(self.name, self._limits.breaker_failures, error), retry_after_s=error.wait_s
            ) from error


class _CircuitOpenedError(UpstreamUnavailableError):
    """Nothing was sent, because the upstream failed repeatedly."""


def _seeded(sampling: Sampling, which: Sequence[int]) -> list[Sampling]:
    """Sampling of each candidate, with seeds counted up: equal seeds draw equal candidates."""
    seeds = [None if sampling.seed is None else _seed(sampling.seed + k) for k in which]
    return [replace(sampling, seed=seed) for seed in seeds]


def _seed(seed: int) -> int:
    return (seed + _SEEDS) % (2 * _SEEDS) - _SEEDS

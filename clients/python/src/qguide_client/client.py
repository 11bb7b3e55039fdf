"""The two clients: `QGuide` blocks, `AsyncQGuide` is for asyncio."""

import asyncio
import time
import uuid
from collections.abc import AsyncGenerator, Generator, Sequence
from contextlib import aclosing, closing
from types import TracebackType
from typing import Any, Final, Self, Unpack
from urllib.parse import quote

import httpx

from qguide_client import calls
from qguide_client.calls import Call, T
from qguide_client.chat_stream import ChatStream
from qguide_client.chat_types import ChatChunk, ChatCompletion, ChatOptions
from qguide_client.conversation import Reply, Retry, converse, error_of
from qguide_client.episode import AsyncAttempts, AsyncEpisode, Attempts, Episode
from qguide_client.types import (
    ActOptions,
    BatchOptions,
    Candidate,
    Decision,
    Messages,
    ModelList,
    Outcome,
    OutcomeOptions,
    Ranking,
    Readiness,
    RerankOptions,
    ScoreBatch,
    ScoreItem,
    ScoreOptions,
    Scores,
)
from qguide_client.version import VERSION

DEFAULT_URL: Final = "http://127.0.0.1:8000"
DEFAULT_TIMEOUT_S: Final = 90.0
_CONNECT_TIMEOUT_S: Final = 5.0
_GRACE_S: Final = 1.0
"""Waited after a deadline, so that the server can answer that it has passed."""
_SHORTEST_S: Final = 0.001


class QGuide:
    """A client of one QGuide server; threads may share it.

    Args:
        base_url: the server's address.
        api_key: the key that the operator gave out; None for a server without keys.
        timeout_s: limit of one attempt; should be longer than the server's own limit.
        retry: number and timing of retries; only requests that are safe to repeat are retried.
        transport: replaces httpx's transport, for example in tests.
    """

    def __init__(
        self,
        base_url: str = DEFAULT_URL,
        *,
        api_key: str | None = None,
        timeout_s: float = DEFAULT_TIMEOUT_S,
        retry: Retry | None = None,
        transport: httpx.BaseTransport | None = None,
    ) -> None:
        options = _http_options(base_url, api_key, timeout_s)
        self._http = httpx.Client(transport=transport, **options)
        self._retry = retry or Retry()

    def act(self, messages: Messages, **options: Unpack[ActOptions]) -> Decision:
        """Draw candidates on the server and choose one by Q."""
        return self.ask(calls.act(messages, options))

    def score(self, messages: Messages, candidates: Sequence[Candidate], **options: Unpack[ScoreOptions]) -> Scores:
        """Score your own candidates, texts or tool calls; no two may be equal."""
        return self.ask(calls.score(messages, candidates, options))

    def score_batch(self, items: Sequence[ScoreItem], **options: Unpack[BatchOptions]) -> ScoreBatch:
        """Score the candidates of several histories; if one item fails, all do."""
        return self.ask(calls.score_batch(items, options))

    def rerank(self, query: str | Messages, documents: Sequence[str], **options: Unpack[RerankOptions]) -> Ranking:
        """Sort documents by Q; documents may repeat.

        Args:
            query: a history, or the text of a single user message.
        """
        return self.ask(calls.rerank(query, documents, options))

    def outcome(self, episode_id: str, reward: float, **options: Unpack[OutcomeOptions]) -> Outcome:
        """Report an episode's outcome; a recording server keeps it as training data.

        Raises:
            UnknownEpisodeError: the server knows no step with this id, or has forgotten it.
            EpisodeClosedError: the episode has its outcome already.
        """
        return self.ask(calls.outcome(episode_id, reward, options))

    def chat(self, messages: Messages, **options: Unpack[ChatOptions]) -> ChatCompletion:
        """The best of M candidates as a chat completion; OpenAI's SDK can be used for this, too."""
        return self.ask(calls.chat(messages, options))

    def chat_stream(self, messages: Messages, **options: Unpack[ChatOptions]) -> Generator[ChatChunk, None, None]:
        """The same, streamed; close the iterator to stop early.

        Raises:
            QGuideError: also after the first chunk, because a stream that has begun is not retried.
        """
        request_id = uuid.uuid4().hex
        call = calls.chat_stream(messages, options)
        stream = ChatStream(request_id=request_id)
        with closing(self._answer(call, request_id, stream=True)) as response:
            try:
                for content in response.iter_bytes():
                    yield from stream.feed(content)
            except httpx.RequestError as error:
                raise error_of(error, request_id=request_id) from error
        stream.end()

    def models(self) -> ModelList:
        """List the models that are served."""
        return self.ask(calls.models())

    def ready(self) -> Readiness:
        """Check that the server can serve requests.

        Raises:
            NoAnswerError: the server cannot be reached.
        """
        return self.ask(calls.ready())

    def episode(self, *, system: str | None = None, **options: Unpack[ActOptions]) -> Episode:
        """Begin an episode, which keeps its own history.

        Args:
            system: the system message, if there is one.
            options: defaults for every step; without `episode_id` a random one is taken.
        """
        return Episode(self, system=system, options=options)

    def attempts(self, n: int, *, system: str | None = None, **options: Unpack[ActOptions]) -> Attempts:
        """Begin several attempts at one task, of which `narrow` lets the best go on.

        Args:
            n: number of attempts, each an episode with an id of its own.
            system: the system message, if there is one.
            options: defaults for every step.
        """
        options.pop("episode_id", None)
        return Attempts(self, [self.episode(system=system, **options) for _ in range(n)])

    def ask(self, call: Call[T]) -> T:
        """Send a call, and retry it where that is safe.

        Raises:
            QGuideError: the last attempt failed; see `qguide_client.errors`.
        """
        request_id = uuid.uuid4().hex
        return call.read(self._answer(call, request_id).content, request_id=request_id)

    def _answer(self, call: Call[Any], request_id: str, *, stream: bool = False) -> httpx.Response:
        conversation = converse(call, self._retry, request_id=request_id)
        wait_s, began_s = next(conversation), time.monotonic()
        while True:
            time.sleep(wait_s)
            request = _request(call, request_id, time.monotonic() - began_s, self._http.timeout)
            try:
                wait_s = conversation.send(self._attempt(request, stream=stream))
            except StopIteration as end:
                response: httpx.Response = end.value
                return response

    def _attempt(self, request: dict[str, Any], *, stream: bool) -> Reply:
        try:
            response = self._http.send(self._http.build_request(**request), stream=stream)
            if not response.is_success:
                response.read()
        except httpx.RequestError as error:
            return error
        return response

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


class AsyncQGuide:
    """`QGuide` for asyncio; the tasks of one event loop may share it."""

    def __init__(
        self,
        base_url: str = DEFAULT_URL,
        *,
        api_key: str | None = None,
        timeout_s: float = DEFAULT_TIMEOUT_S,
        retry: Retry | None = None,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        options = _http_options(base_url, api_key, timeout_s)
        self._http = httpx.AsyncClient(transport=transport, **options)
        self._retry = retry or Retry()

    async def act(self, messages: Messages, **options: Unpack[ActOptions]) -> Decision:
        """See `QGuide.act`."""
        return await self.ask(calls.act(messages, options))

    async def score(
        self, messages: Messages, candidates: Sequence[Candidate], **options: Unpack[ScoreOptions]
    ) -> Scores:
        """See `QGuide.score`."""
        return await self.ask(calls.score(messages, candidates, options))

    async def score_batch(self, items: Sequence[ScoreItem], **options: Unpack[BatchOptions]) -> ScoreBatch:
        """See `QGuide.score_batch`."""
        return await self.ask(calls.score_batch(items, options))

    async def rerank(
        self, query: str | Messages, documents: Sequence[str], **options: Unpack[RerankOptions]
    ) -> Ranking:
        """See `QGuide.rerank`."""
        return await self.ask(calls.rerank(query, documents, options))

    async def outcome(self, episode_id: str, reward: float, **options: Unpack[OutcomeOptions]) -> Outcome:
        """See `QGuide.outcome`."""
        return await self.ask(calls.outcome(episode_id, reward, options))

    async def chat(self, messages: Messages, **options: Unpack[ChatOptions]) -> ChatCompletion:
        """See `QGuide.chat`."""
        return await self.ask(calls.chat(messages, options))

    async def chat_stream(self, messages: Messages, **options: Unpack[ChatOptions]) -> AsyncGenerator[ChatChunk, None]:
        """See `QGuide.chat_stream`."""
        request_id = uuid.uuid4().hex
        call = calls.chat_stream(messages, options)
        stream = ChatStream(request_id=request_id)
        async with aclosing(await self._answer(call, request_id, stream=True)) as response:
            try:
                async for content in response.aiter_bytes():
                    for chunk in stream.feed(content):
                        yield chunk
            except httpx.RequestError as error:
                raise error_of(error, request_id=request_id) from error
        stream.end()

    async def models(self) -> ModelList:
        """See `QGuide.models`."""
        return await self.ask(calls.models())

    async def ready(self) -> Readiness:
        """See `QGuide.ready`."""
        return await self.ask(calls.ready())

    def episode(self, *, system: str | None = None, **options: Unpack[ActOptions]) -> AsyncEpisode:
        """See `QGuide.episode`."""
        return AsyncEpisode(self, system=system, options=options)

    def attempts(self, n: int, *, system: str | None = None, **options: Unpack[ActOptions]) -> AsyncAttempts:
        """See `QGuide.attempts`."""
        options.pop("episode_id", None)
        return AsyncAttempts(self, [self.episode(system=system, **options) for _ in range(n)])

    async def ask(self, call: Call[T]) -> T:
        """See `QGuide.ask`."""
        request_id = uuid.uuid4().hex
        return call.read((await self._answer(call, request_id)).content, request_id=request_id)

    async def _answer(self, call: Call[Any], request_id: str, *, stream: bool = False) -> httpx.Response:
        conversation = converse(call, self._retry, request_id=request_id)
        wait_s, began_s = next(conversation), time.monotonic()
        while True:
            await asyncio.sleep(wait_s)
            request = _request(call, request_id, time.monotonic() - began_s, self._http.timeout)
            try:
                wait_s = conversation.send(await self._attempt(request, stream=stream))
            except StopIteration as end:
                response: httpx.Response = end.value
                return response

    async def _attempt(self, request: dict[str, Any], *, stream: bool) -> Reply:
        try:
            response = await self._http.send(self._http.build_request(**request), stream=stream)
            if not response.is_success:
                await response.aread()
        except httpx.RequestError as error:
            return error
        return response

    async def aclose(self) -> None:
        """Close the connections."""
        await self._http.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.aclose()


def _http_options(base_url: str, api_key: str | None, timeout_s: float) -> dict[str, Any]:
    headers = {"User-Agent": f"qguide-client/{VERSION}"}
    if api_key is not None:
        headers["Authorization"] = f"Bearer {api_key}"
    timeout = httpx.Timeout(timeout_s, connect=min(timeout_s, _CONNECT_TIMEOUT_S))
    return {"base_url": base_url, "headers": headers, "timeout": timeout}


def _request(call: Call[Any], request_id: str, elapsed_s: float, timeout: httpx.Timeout) -> dict[str, Any]:
    request: dict[str, Any] = {
        "method": call.method,
        "url": call.path,
        "json": call.body,
        "headers": {"X-Request-ID": request_id},
    }
    if episode_id := (call.body or {}).get("episode_id"):  # for routers, which read no bodies
        request["headers"]["X-Session-ID"] = quote(str(episode_id), safe="")
    if call.deadline_s is None:
        return request
    left_s = max(_SHORTEST_S, call.deadline_s - elapsed_s)
    patience_s = left_s + _GRACE_S
    request["headers"]["X-QGuide-Timeout-S"] = f"{left_s:.3f}"
    limits = {name: min(s or patience_s, patience_s) for name, s in timeout.as_dict().items()}
    return request | {"timeout": httpx.Timeout(**limits)}

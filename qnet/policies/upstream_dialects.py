"""Dialects of upstreams: requests written in them, and answers read as chat completions'. Pure."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any, Final, Literal

from qguide.qnet.chat_messages import wire_message
from qguide.qnet.dialects import (
    anthropic_answers,
    anthropic_requests,
    chat_chunks,
    gemini_answers,
    gemini_requests,
    responses_answers,
    responses_requests,
)
from qguide.qnet.dialects.shapes import ASKED, Json
from qguide.qnet.native_requests import NativeAnswer, NativeRequest
from qguide.qnet.policies.answers import Completion, cut_at, object_in, read_completion, usage_of
from qguide.qnet.types import Candidate, History, Sampling
from qguide.qnet.work import TokenUsage

DialectName = Literal["chat", "messages", "responses", "gemini"]
MaxTokensName = Literal["max_tokens", "max_completion_tokens"]
"""Parameter for the longest completion; OpenAI's reasoning models take only the second."""


@dataclass(frozen=True, slots=True)
class Provider:
    """A provider of the dialect: its name in `qguide serve --upstream NAME:MODEL`, and settings of its upstreams."""

    name: str
    url: str
    key_variable: str
    caches: bool = False


@dataclass(frozen=True, slots=True)
class Beside:
    """A route that draws nothing: fields of a request that it takes, and the one of its answer."""

    path: str
    fields: frozenset[str]
    answer: str


@dataclass(frozen=True, slots=True)
class Dialect:
    """Form of the requests to an upstream and of its answers, and what others need to know of it.

    Attributes:
        api: what it is, for readers of the settings.
        assembled: the answer that a stream's events add up to; None if they do not come to its
            end. What is malformed is left out.
        deltas: reads the events of one stream, one by one, as new parts of a chat's choice; None if they do not go on
            to callers as they come.
        request_of: the request from that of a chat completion, and from the caller's own.
        takes_stop: False if a request names no texts that end a candidate, or only some; they end it here.
        key_header: header of the key; "" sends it as a bearer token.
        headers: of every request.
        usage: field of an answer, or of an event, that has the usage.
        prompt: fields of a request with the history, whose addresses an upstream would fetch.
        fields: those of a caller's own request that go on, beside the parameters of every chat: an upstream is
            asked with the operator's key, so only what changes the text of the caller's own answer.
        counting: the route that counts a prompt's tokens; None if the dialect has none.
        compacting: likewise the route that compacts a history.
        marked: the request with a breakpoint of the prompt's cache at its end; None if caches of
            the dialect need none, or there are none.
        placed: path and content of a request, if the path depends on that.
        one_of: the answer with one of its candidates; None if it has only one.
        beside_chats: its servers have OpenAI's other routes: embeddings, files and batches.
    """

    name: DialectName
    api: str
    path: str
    answer: str
    assembled: Callable[[Sequence[Mapping[str, Any]]], Json | None]
    request_of: Callable[[Json, Mapping[str, Any] | None], Json] | None = None
    completion_of: Callable[[Json], Json] | None = None
    deltas: Callable[[], Callable[[Mapping[str, Any]], Json | None]] | None = None
    key_header: str = ""
    headers: Mapping[str, str] = field(default_factory=dict)
    usage: str = "usage"
    prompt: tuple[str, ...] = ("messages",)
    fields: frozenset[str] = frozenset()
    takes_n: bool = False
    takes_stop: bool = True
    as_stream: Mapping[str, Any] = field(default_factory=lambda: {"stream": True})
    max_tokens_name: MaxTokensName = "max_tokens"
    counting: Beside | None = None
    compacting: Beside | None = None
    marked: Callable[[Json], Json] | None = None
    placed: Callable[[str, Json], tuple[str, Json]] = lambda path, body: (path, body)
    one_of: Callable[[Json, int], Json] = lambda answer, index: answer
    beside_chats: bool = False
    provider: Provider | None = None

    def headers_with(self, api_key: str | None) -> dict[str, str]:
        """Headers of every request to an upstream with this key."""
        if not api_key:
            return {**self.headers}
        key = {self.key_header: api_key} if self.key_header else {"Authorization": f"Bearer {api_key}"}
        return {**self.headers, **key}

    def request_body(self, model: str, history: History, *, n: int, sampling: Sampling) -> dict[str, Any]:
        """Body of a request; settings that are None are left to the upstream."""
        known = {
            "n": n if n > 1 else None,
            "temperature": sampling.temperature,
            self.max_tokens_name: sampling.max_tokens,
            "seed": sampling.seed,
        }
        chat = {
            **sampling.parameters,
            "model": model,
            "messages": [wire_message(message) for message in history],
            **{name: value for name, value in known.items() if value is not None},
        }
        if self.request_of is None:
            return {name: value for name, value in chat.items() if ASKED.get(name) != value}
        native = self._own(history, sampling)
        return self.request_of(chat, native.body if native else None)

    def ended(self, drawn: Sequence[Candidate], sampling: Sampling) -> list[Candidate]:
        """The candidates, ended where the upstream could not be told to end them."""
        stop = None if self.takes_stop else sampling.parameters.get("stop")
        return [cut_at(candidate, stop) for candidate in drawn]

    def request_headers(self, history: History, sampling: Sampling) -> dict[str, str]:
        """Headers of one request: those that go with the caller's own body."""
        native = self._own(history, sampling)
        return {**native.headers} if native else {}

    def _own(self, history: History, sampling: Sampling) -> NativeRequest | None:
        """The caller's own request, if it is in this dialect and was read as this history.

        A paraphrase or a remark about poor candidates makes another history.
        """
        native = sampling.native
        own = native is not None and native.dialect == self.name and native.history is history
        return native if own else None

    def usage_in(self, events: Iterable[Mapping[str, Any]]) -> TokenUsage:
        """The usage that the first events of a stream tell; nothing if they tell none."""
        told: Json = {}
        for said in chain.from_iterable((event, *event.values()) for event in events):
            if isinstance(said, Mapping) and isinstance(usage := said.get(self.usage), Mapping):
                told |= usage
        whole = {self.usage: told} if told else {}
        return usage_of(self.completion_of(whole) if self.completion_of else whole)

    def read_answer(self, answer: bytes) -> Completion:
        """Read an answer with status 200; never raises."""
        said, is_object = object_in(answer)
        if said is None:
            return Completion(is_object=is_object)
        if self.completion_of is None:
            return read_completion(said)
        read = read_completion(self.completion_of(said))
        drawn = [
            replace(one, native=NativeAnswer(self.name, self.one_of(said, index)))
            for index, one in enumerate(read.candidates)
        ]
        return replace(read, candidates=drawn)


CHAT: Final = Dialect(
    "chat",
    "chat completions, which most servers know",
    "chat/completions",
    "chat completion",
    chat_chunks.assembled_completion,
    deltas=lambda: chat_chunks.Deltas().of,
    takes_n=True,
    as_stream={"stream": True, "stream_options": {"include_usage": True}},
    beside_chats=True,
    provider=Provider("openai", "https://api.openai.com/v1", "OPENAI_API_KEY"),
)
MESSAGES: Final = Dialect(
    "messages",
    "Anthropic's Messages API",
    "messages",
    "message",
    anthropic_answers.assembled_message,
    anthropic_requests.request_of,
    anthropic_answers.completion_of,
    key_header="x-api-key",
    headers={"anthropic-version": "2023-06-01"},
    prompt=("messages", "system"),
    fields=frozenset(
        (
            *("messages", "model", "max_tokens", "system", "tools", "tool_choice", "temperature"),
            *("top_p", "top_k", "stop_sequences", "metadata", "thinking", "output_config"),
            *("cache_control", "context_management"),
        )
    ),
    counting=Beside(
        "messages/count_tokens",
        frozenset(("messages", "model", "system", "tools", "tool_choice", "thinking")),
        "input_tokens",
    ),
    marked=anthropic_requests.marked,
    provider=Provider("anthropic", "https://api.anthropic.com/v1", "ANTHROPIC_API_KEY", caches=True),
)
RESPONSES: Final = Dialect(
    "responses",
    "OpenAI's Responses API",
    "responses",
    "response",
    responses_answers.assembled_response,
    responses_requests.request_of,
    responses_answers.completion_of,
    takes_stop=False,
    prompt=("input",),
    fields=frozenset(
        (
            *("input", "model", "instructions", "tools", "tool_choice", "temperature", "text"),
            *("reasoning", "max_output_tokens", "include", "metadata", "max_tool_calls", "store"),
            *("truncation", "client_metadata", "image"),
        )
    ),
    counting=Beside(
        "responses/input_tokens",
        frozenset(
            (
                *("input", "instructions", "model", "parallel_tool_calls", "reasoning", "text"),
                *("tool_choice", "tools", "truncation"),
            )
        ),
        "input_tokens",
    ),
    compacting=Beside(
        "responses/compact",
        frozenset(
            (
                *("input", "instructions", "model", "parallel_tool_calls", "prompt_cache_key"),
                *("reasoning", "service_tier", "text", "tools"),
            )
        ),
        "output",
    ),
    beside_chats=True,
)
GEMINI: Final = Dialect(
    "gemini",
    "Gemini's generateContent",
    gemini_requests.GENERATE,
    "list of candidates",
    gemini_answers.assembled_content,
    gemini_requests.request_of,
    gemini_answers.completion_of,
    key_header="x-goog-api-key",
    usage="usageMetadata",
    prompt=("contents", "systemInstruction"),
    fields=frozenset(("contents", "systemInstruction", "tools", "toolConfig", "generationConfig", "safetySettings")),
    takes_n=True,
    takes_stop=False,
    counting=Beside(
        gemini_requests.COUNT,
        frozenset(("model", "contents", "systemInstruction", "tools", "toolConfig")),
        "totalTokens",
    ),
    placed=gemini_requests.placed,
    one_of=gemini_answers.one_of,
    provider=Provider("gemini", "https://generativelanguage.googleapis.com/v1beta", "GEMINI_API_KEY"),
)
DIALECTS: Final = {dialect.name: dialect for dialect in (CHAT, MESSAGES, RESPONSES, GEMINI)}


def build_dialect(name: DialectName, max_tokens_name: MaxTokensName = "max_tokens") -> Dialect:
    """The dialect in which an upstream is asked."""
    return replace(CHAT, max_tokens_name=max_tokens_name) if name == "chat" else DIALECTS[name]

"""Dialects of upstreams: requests written in them, and answers read as chat completions'. Pure."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
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
from qguide.qnet.native_requests import BETAS, DialectName, NativeAnswer, NativeRequest
from qguide.qnet.policies.answers import Completion, cut_at, object_in, read_completion, usage_of
from qguide.qnet.types import Candidate, History, Sampling
from qguide.qnet.work import TokenUsage

MaxTokensName = Literal["max_tokens", "max_completion_tokens"]
"""Parameter for the longest completion; OpenAI's reasoning models take only the second."""

_MOST_BREAKPOINTS: Final = 4
_ANTHROPIC_VERSION: Final = "2023-06-01"


def _bearer(api_key: str | None) -> dict[str, str]:
    return {"Authorization": f"Bearer {api_key}"} if api_key else {}


def _anthropic(api_key: str | None) -> dict[str, str]:
    key = {"x-api-key": api_key} if api_key else {}
    return {"anthropic-version": _ANTHROPIC_VERSION, **key}


def _marked(body: Json) -> Json:
    """The request with a cache breakpoint at its end, if it may have one more.

    A `cache_control` of the whole request is such a breakpoint already.
    """
    turns, system = body["messages"], body.get("system")
    contents = [turn["content"] for turn in turns] + [system, body.get("tools")]
    blocks = [block for content in contents if isinstance(content, list) for block in content]
    breakpoints = sum("cache_control" in block for block in blocks)
    content = turns[-1]["content"]
    ends = [{"type": "text", "text": content}] if isinstance(content, str) else list(content)
    bare = ("text", *anthropic_requests.THINKING)  # thoughts and empty texts cannot have one
    if "cache_control" in body or breakpoints >= _MOST_BREAKPOINTS or not ends:
        return body
    if ends[-1].get("type") in bare and not ends[-1].get("text"):
        return body
    ends[-1] = {"cache_control": {"type": "ephemeral"}, **ends[-1]}
    return {**body, "messages": [*turns[:-1], {**turns[-1], "content": ends}]}


@dataclass(frozen=True, slots=True)
class Dialect:
    """Form of the requests to an upstream and of its answers.

    Attributes:
        assembled: the answer that a stream's events add up to; None if they do not come to its
            end. What is malformed is left out.
        request_of: the request from that of a chat completion, and from the caller's own.
        takes_stop: False if a request names no texts that end a candidate, or only some; they end it here.
        counting: path of the route that counts a prompt's tokens, and what its requests may
            have of a request's fields; None if the dialect has no such route.
        compacting: likewise for the route that compacts a history.
        marked: the request with a breakpoint of the prompt's cache at its end; None if caches of
            the dialect need none, or there are none.
        placed: path and content of a request, if the path depends on that.
        one_of: the answer with one of its candidates; None if it has only one.
    """

    name: DialectName
    path: str
    answer: str
    assembled: Callable[[Sequence[Mapping[str, Any]]], Json | None]
    request_of: Callable[[Json, Mapping[str, Any] | None], Json] | None = None
    completion_of: Callable[[Json], Json] | None = None
    headers: Callable[[str | None], dict[str, str]] = _bearer
    takes_n: bool = False
    takes_stop: bool = True
    as_stream: Mapping[str, Any] = field(default_factory=lambda: {"stream": True})
    max_tokens_name: MaxTokensName = "max_tokens"
    counting: tuple[str, frozenset[str]] | None = None
    compacting: tuple[str, frozenset[str]] | None = None
    marked: Callable[[Json], Json] | None = None
    placed: Callable[[str, Json], tuple[str, Json]] = lambda path, body: (path, body)
    one_of: Callable[[Json, int], Json] = lambda answer, index: answer

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
        """Headers of one request: the betas that the caller's own body asks for."""
        native = self._own(history, sampling)
        return {BETAS: ",".join(native.betas)} if native and native.betas else {}

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
        for event in events:
            for said in (event, event.get("message"), event.get("response")):
                for name in ("usage", "usageMetadata"):
                    if isinstance(said, Mapping) and isinstance(said.get(name), Mapping):
                        told[name] = told.get(name, {}) | said[name]
        return usage_of(self.completion_of(told) if self.completion_of else told)

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
    "chat/completions",
    "chat completion",
    chat_chunks.assembled_completion,
    takes_n=True,
    as_stream={"stream": True, "stream_options": {"include_usage": True}},
)
MESSAGES: Final = Dialect(
    "messages",
    "messages",
    "message",
    anthropic_answers.assembled_message,
    anthropic_requests.request_of,
    anthropic_answers.completion_of,
    headers=_anthropic,
    counting=("messages/count_tokens", frozenset(("messages", "model", "system", "tools", "tool_choice", "thinking"))),
    marked=_marked,
)
RESPONSES: Final = Dialect(
    "responses",
    "responses",
    "response",
    responses_answers.assembled_response,
    responses_requests.request_of,
    responses_answers.completion_of,
    takes_stop=False,
    counting=(
        "responses/input_tokens",
        frozenset(
            (
                *("input", "instructions", "model", "parallel_tool_calls", "reasoning", "text"),
                *("tool_choice", "tools", "truncation"),
            )
        ),
    ),
    compacting=(
        "responses/compact",
        frozenset(
            (
                *("input", "instructions", "model", "parallel_tool_calls", "prompt_cache_key"),
                *("reasoning", "service_tier", "text", "tools"),
            )
        ),
    ),
)

GEMINI: Final = Dialect(
    "gemini",
    gemini_requests.GENERATE,
    "list of candidates",
    gemini_answers.assembled_content,
    gemini_requests.request_of,
    gemini_answers.completion_of,
    headers=lambda api_key: {"x-goog-api-key": api_key} if api_key else {},
    takes_n=True,
    takes_stop=False,
    counting=(gemini_requests.COUNT, frozenset(("model", "contents", "systemInstruction", "tools", "toolConfig"))),
    placed=gemini_requests.placed,
    one_of=gemini_answers.one_of,
)
_DIALECTS: Final = {dialect.name: dialect for dialect in (CHAT, MESSAGES, RESPONSES, GEMINI)}


def build_dialect(name: DialectName, max_tokens_name: MaxTokensName = "max_tokens") -> Dialect:
    """The dialect in which an upstream is asked."""
    return replace(CHAT, max_tokens_name=max_tokens_name) if name == "chat" else _DIALECTS[name]

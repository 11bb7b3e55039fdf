"""Anthropic's messages from the client's side: requests written, answers read. Pure."""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar, Final

from pydantic import Field

from qguide.qnet.anthropic_blocks import INVALID_JSON, THINKING, arguments_of
from qguide.qnet.errors import InvalidRequestError
from qguide.qnet.native import DialectName, NativeAnswer
from qguide.qnet.openai_messages import Shape, plain_message, text_of, wire_message
from qguide.qnet.policies.dialects.base import (
    CHATS_ALONE,
    LENGTH,
    Completion,
    Count,
    IgnoringExtras,
    Said,
    native_body,
    object_in,
    passed_on,
    read_as,
)
from qguide.qnet.policies.dialects.message_events import assembled_message
from qguide.qnet.types import Candidate, History, Message, Sampling, ToolCall
from qguide.qnet.usage import NOTHING, TokenUsage

VERSION: Final = "2023-06-01"
MAX_TOKENS: Final = 4096
"""For a request without a limit, which this dialect has to have."""
THINKING_BLOCKS: Final = "thinking_blocks"
"""Field of a chat message with the thoughts as Anthropic signed them; LiteLLM's name for it."""

Json = dict[str, Any]

_WITHOUT_EFFECT: Final = frozenset(
    (
        "logprobs",
        "max_completion_tokens",
        "n",
        "prediction",
        "safety_identifier",
        "seed",
        "service_tier",
        "store",
        "stream_options",
        "top_logprobs",
        "verbosity",
    )
)
_SYSTEM: Final = ("system", "developer")
_TOOL_CHOICES: Final = {"auto": "auto", "required": "any", "none": "none"}
_FINISH_REASONS: Final = {
    "end_turn": "stop",
    "stop_sequence": "stop",
    "max_tokens": LENGTH,
    "tool_use": "tool_calls",
    "refusal": "content_filter",
}


class MessagesDialect:
    """Anthropic's Messages API; see `Dialect`."""

    name: ClassVar[DialectName] = "messages"
    path: ClassVar[str] = "messages"
    answer: ClassVar[str] = "message"
    takes_n: ClassVar[bool] = False
    as_stream: ClassVar[Mapping[str, Any]] = {"stream": True}

    def headers(self, api_key: str | None) -> dict[str, str]:
        """The key and the version of the interface."""
        key = {"x-api-key": api_key} if api_key else {}
        return {"anthropic-version": VERSION, **key}

    def request_body(
        self, model: str, history: History, *, n: int, sampling: Sampling
    ) -> dict[str, Any]:
        """Body of a request; see `Dialect`."""
        body = native_body(self.name, history, sampling)
        if body is None:
            body = {**_prompt(history), **_parameters(sampling.parameters)}
        longest = sampling.parameters.get("max_completion_tokens") or sampling.max_tokens
        body |= {"model": model, "max_tokens": longest or body.get("max_tokens") or MAX_TOKENS}
        return body | (
            {} if sampling.temperature is None else {"temperature": sampling.temperature}
        )

    def read_answer(self, answer: bytes) -> Completion:
        """Read a message; never raises."""
        said, is_object = object_in(answer)
        if said is None:
            return Completion(is_object=is_object)
        counted = read_as(_UsageOnly, said)
        spent = counted.usage.spent if counted else NOTHING
        read = read_as(_Answer, said)
        drawn = [_candidate(read, said, spent)] if read else []
        return Completion(drawn, spent, is_object=True)

    def assembled(self, events: Sequence[Mapping[str, Any]]) -> dict[str, Any] | None:
        """The message of a stream's events; see `Dialect`."""
        return assembled_message(events)


def _prompt(history: History) -> Json:
    """System messages at the beginning, and turns in which a role never follows itself."""
    rows = [wire_message(message) for message in history]
    first = next((k for k, row in enumerate(rows) if row["role"] not in _SYSTEM), len(rows))
    first = min(first, len(rows) - 1)  # system messages alone: the last one is the user's
    turns: list[Json] = []
    for row in rows[first:]:
        role = "assistant" if row["role"] == "assistant" else "user"
        blocks = list(_blocks(row))
        if turns and turns[-1]["role"] == role:
            turns[-1]["content"] += blocks
        elif blocks:
            turns.append({"role": role, "content": blocks})
    system = "\n\n".join(text_of(row["content"]) for row in rows[:first])
    return {"messages": turns, **({"system": system} if system else {})}


def _blocks(row: Mapping[str, Any]) -> Iterator[Json]:
    """The blocks of a turn; those without text are left out, because they are refused."""
    if row["role"] in ("tool", "function"):
        call_id = row.get("tool_call_id") or ""
        yield {"type": "tool_result", "tool_use_id": call_id, "content": list(_parts(row))}
        return
    yield from _thoughts(row.get(THINKING_BLOCKS))
    yield from _parts(row)
    for call in row.get("tool_calls") or ():
        yield _tool_use(call)


def _thoughts(given: object) -> Iterator[Json]:
    """Signed thoughts of a chat's message; no other block, which could name an address."""
    for block in given if isinstance(given, list) else ():
        if isinstance(block, dict) and block.get("type") in THINKING:
            yield block


def _parts(row: Mapping[str, Any]) -> Iterator[Json]:
    content = row.get("content") or row.get("refusal") or ""
    parts: list[Json] = (
        content if isinstance(content, list) else [{"type": "text", "text": content}]
    )
    for part in parts:
        match part.get("type"):
            case "text" | "refusal" as kind:
                if said := part.get(kind):
                    yield {"type": "text", "text": said}
            case "image_url":
                yield {"type": "image", "source": _source(part["image_url"]["url"])}
            case "file" if "file_data" in (part.get("file") or {}):
                yield {"type": "document", "source": _source(part["file"]["file_data"])}
            case other:
                raise InvalidRequestError(
                    f"a message has a part of type {str(other)[:40]!r}, which an upstream of the "
                    "dialect 'messages' cannot be sent; send text, image_url or file_data"
                )


def _source(address: str) -> Json:
    head, comma, data = address.partition(";base64,")
    if head.startswith("data:") and comma:
        return {"type": "base64", "media_type": head.removeprefix("data:"), "data": data}
    return {"type": "url", "url": address}


def _tool_use(call: Mapping[str, Any]) -> Json:
    function = _function(call)
    try:
        given = json.loads(function.get("arguments") or "{}")
    except ValueError:
        given = None
    if not isinstance(given, dict):
        given = {INVALID_JSON: function["arguments"]}
    return {"type": "tool_use", "id": call.get("id"), "name": function["name"], "input": given}


def _function(given: Mapping[str, Any]) -> Mapping[str, Any]:
    if given.get("type", "function") != "function":
        raise InvalidRequestError(
            f"a tool or call has the type {str(given['type'])[:40]!r}; an upstream of the dialect "
            "'messages' knows functions only"
        )
    function: Mapping[str, Any] = given["function"]
    return function


def _parameters(parameters: Mapping[str, object]) -> Json:
    given = passed_on(parameters, "messages", without_effect=_WITHOUT_EFFECT, unknown=CHATS_ALONE)
    said: Json = {}
    stop = given.pop("stop", None)
    if stop:
        said["stop_sequences"] = [stop] if isinstance(stop, str) else stop
    if user := given.pop("user", None):
        said["metadata"] = {"user_id": user}
    config = _output_config(given.pop("response_format", None), given.pop("reasoning_effort", None))
    if config:
        said["output_config"] = config
    choice, parallel = given.pop("tool_choice", None), given.pop("parallel_tool_calls", None)
    if tools := given.pop("tools", None):
        said["tools"] = [_tool(_function(tool)) for tool in tools]
        if choice is not None or parallel is False:
            said["tool_choice"] = _tool_choice(choice, parallel)
    return given | said


def _tool(function: Mapping[str, Any]) -> Json:
    schema = function.get("parameters") or {"type": "object", "properties": {}}
    kept = {name: function[name] for name in ("description", "strict") if name in function}
    return {"name": function["name"], **kept, "input_schema": schema}


def _tool_choice(choice: Any, parallel: Any) -> Json:
    if isinstance(choice, Mapping):
        said: Json = {"type": "tool", "name": _function(choice)["name"]}
    else:
        said = {"type": _TOOL_CHOICES.get(choice, "auto")}
    one = parallel is False and said["type"] != "none"
    return said | ({"disable_parallel_tool_use": True} if one else {})


def _output_config(format_: Any, effort: Any) -> Json:
    config: Json = {} if effort is None else {"effort": effort}
    match format_:
        case None | {"type": "text"}:
            return config
        case {"type": "json_schema", "json_schema": {"schema": schema}}:
            return config | {"format": {"type": "json_schema", "schema": schema}}
    raise InvalidRequestError(
        "response_format has no schema, which an upstream of the dialect 'messages' needs; send "
        "json_schema"
    )


class _Block(Shape):
    type: str
    text: Said = ""
    thinking: Said = ""
    signature: Said = ""
    id: str = ""
    name: str = ""
    input: dict[str, Any] = Field(default_factory=dict)


class _Usage(IgnoringExtras):
    input_tokens: Count = 0
    output_tokens: Count = 0
    cache_read_input_tokens: Count = 0
    cache_creation_input_tokens: Count = 0

    @property
    def spent(self) -> TokenUsage:
        """This usage as a `TokenUsage`; Anthropic counts cached tokens apart from the others."""
        cached = self.cache_read_input_tokens
        prompt = self.input_tokens + cached + self.cache_creation_input_tokens
        return TokenUsage(prompt, self.output_tokens, cached)


class _UsageOnly(IgnoringExtras):
    usage: _Usage = _Usage()


class _Answer(IgnoringExtras):
    content: list[_Block]
    stop_reason: str | None = None
    stop_sequence: str | None = None


def _candidate(read: _Answer, said: Json, spent: TokenUsage) -> Candidate:
    reason = _FINISH_REASONS.get(read.stop_reason or "", "stop")
    return Candidate(
        message=_message(read.content, said["content"]),
        completion_tokens=spent.completion_tokens,
        finished=reason != LENGTH,
        prompt_tokens=spent.prompt_tokens,
        spent=spent,
        finish_reason=reason,
        extra={"stop_reason": read.stop_sequence} if read.stop_sequence else {},
        native=NativeAnswer("messages", said),
    )


def _message(blocks: Sequence[_Block], said: Sequence[Json]) -> Message:
    text = "".join(block.text for block in blocks if block.type == "text")
    calls = tuple(_call(block) for block in blocks if block.type == "tool_use")
    thoughts = [block for block in said if "thinking" in str(block.get("type"))]
    message = Message("assistant", text, calls)
    wire = plain_message(message)
    if thoughts:
        wire[THINKING_BLOCKS] = thoughts
        wire["reasoning_content"] = "".join(str(one.get("thinking") or "") for one in thoughts)
    return Message("assistant", text, calls, wire=wire)


def _call(block: _Block) -> ToolCall:
    return ToolCall(block.name, arguments_of(block.input), block.id)

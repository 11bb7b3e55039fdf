"""OpenAI's Responses API from the client's side: requests written, answers read. Pure."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar, Final

from qguide.qnet.errors import InvalidRequestError
from qguide.qnet.native import DialectName, NativeAnswer
from qguide.qnet.openai_messages import plain_message, text_of, wire_message
from qguide.qnet.policies.dialects.base import (
    CHATS_ALONE,
    LENGTH,
    Completion,
    Count,
    IgnoringExtras,
    Said,
    Tokens,
    bearer,
    logprob_of,
    native_body,
    object_in,
    passed_on,
    read_as,
)
from qguide.qnet.types import Candidate, History, Message, Sampling, ToolCall
from qguide.qnet.usage import NOTHING, TokenUsage

Json = dict[str, Any]

_WITHOUT_EFFECT: Final = frozenset(
    ["max_completion_tokens", "n", "prediction", "seed", "store", "stream_options"]
)
_UNKNOWN: Final = CHATS_ALONE | {"stop"}
_OUTPUTS: Final = {"function": "function_call_output", "custom": "custom_tool_call_output"}
_CALLS: Final = {
    "function": ("function_call", "arguments"),
    "custom": ("custom_tool_call", "input"),
}
_KINDS: Final = {"function_call": "function", "custom_tool_call": "custom"}
_LOGPROBS: Final = "message.output_text.logprobs"
_ENDS: Final = ("response.completed", "response.incomplete", "response.failed")
_INCOMPLETE: Final = {"max_output_tokens": LENGTH, "content_filter": "content_filter"}


class ResponsesDialect:
    """OpenAI's Responses API, without stored responses; see `Dialect`."""

    name: ClassVar[DialectName] = "responses"
    path: ClassVar[str] = "responses"
    answer: ClassVar[str] = "response"
    takes_n: ClassVar[bool] = False
    as_stream: ClassVar[Mapping[str, Any]] = {"stream": True}

    def headers(self, api_key: str | None) -> dict[str, str]:
        """The key as a bearer token."""
        return bearer(api_key)

    def request_body(
        self, model: str, history: History, *, n: int, sampling: Sampling
    ) -> dict[str, Any]:
        """Body of a request; see `Dialect`."""
        body = native_body(self.name, history, sampling)
        if body is None:
            body = {"input": _input(history), **_parameters(sampling.parameters)}
        known = {
            "temperature": sampling.temperature,
            "max_output_tokens": sampling.parameters.get("max_completion_tokens")
            or sampling.max_tokens,
        }
        given = {name: value for name, value in known.items() if value is not None}
        return body | given | {"model": model, "store": False}

    def read_answer(self, answer: bytes) -> Completion:
        """Read a response; never raises. One that failed has no candidates."""
        said, is_object = object_in(answer)
        if said is None:
            return Completion(is_object=is_object)
        counted = read_as(_UsageOnly, said)
        spent = counted.usage.spent if counted and counted.usage else NOTHING
        read = read_as(_Answer, said)
        whole = read is not None and read.status in ("completed", "incomplete")
        drawn = [_candidate(read, said, spent)] if read and whole else []
        return Completion(drawn, spent, is_object=True)

    def assembled(self, events: Sequence[Mapping[str, Any]]) -> dict[str, Any] | None:
        """The response that a stream's last event has whole; see `Dialect`."""
        for event in reversed(events):
            response = event.get("response")
            if event.get("type") in _ENDS and isinstance(response, dict):
                return response
        return None


def _input(history: History) -> list[Json]:
    """Input items; a turn with calls is several."""
    kinds: dict[str, str] = {}
    return [item for message in history for item in _items(wire_message(message), kinds)]


def _items(row: Mapping[str, Any], kinds: dict[str, str]) -> Iterator[Json]:
    """The items of a turn.

    Args:
        kinds: kind of each call so far, by its id.
    """
    role = row["role"]
    if role in ("tool", "function"):
        call_id = row.get("tool_call_id") or ""
        kind = _OUTPUTS[kinds.get(call_id, "function")]
        yield {"type": kind, "call_id": call_id, "output": text_of(row.get("content"))}
        return
    content = row.get("content") or row.get("refusal")
    if role == "assistant":
        if text := text_of(content):
            yield {"role": role, "content": text}
    else:
        yield {"role": role, "content": _content(content or "")}
    for call in row.get("tool_calls") or ():
        kind = call.get("type") or "function"
        item, field = _CALLS[kind]
        kinds[call["id"]] = kind
        said = call[kind]
        yield {"type": item, "call_id": call["id"], "name": said["name"], field: said[field]}


def _content(content: str | Sequence[Json]) -> str | list[Json]:
    return content if isinstance(content, str) else [_part(part) for part in content]


def _part(part: Json) -> Json:
    match part.get("type"):
        case "text":
            return {"type": "input_text", "text": part.get("text") or ""}
        case "image_url":
            image = dict(part["image_url"])
            return {"type": "input_image", "image_url": image.pop("url"), **image}
        case "file":
            return {"type": "input_file", **part["file"]}
        case "input_audio":
            return part
    raise InvalidRequestError(
        f"a message has a part of type {str(part.get('type'))[:40]!r}, which an upstream of the "
        "dialect 'responses' cannot be sent; send text, image_url or file"
    )


def _parameters(parameters: Mapping[str, object]) -> Json:
    given = passed_on(parameters, "responses", without_effect=_WITHOUT_EFFECT, unknown=_UNKNOWN)
    said: Json = {}
    if effort := given.pop("reasoning_effort", None):
        said["reasoning"] = {"effort": effort}
    if given.pop("logprobs", None):
        said["include"] = [_LOGPROBS]
    form, verbosity = given.pop("response_format", None), given.pop("verbosity", None)
    text = {"format": _flat(form)} if form else {}
    if text or verbosity:
        said["text"] = text | ({"verbosity": verbosity} if verbosity else {})
    if tools := given.pop("tools", None):
        said["tools"] = [_flat(tool) for tool in tools]
    choice = given.pop("tool_choice", None)
    if choice is not None:
        said["tool_choice"] = _flat(choice) if isinstance(choice, Mapping) else choice
    return given | said


def _flat(nested: Mapping[str, Any]) -> Json:
    """A tool, a choice or a format; chat completions nest its fields below its type."""
    inner = nested.get(nested["type"])
    return {"type": nested["type"], **(inner if isinstance(inner, Mapping) else {})}


class _Part(IgnoringExtras):
    type: str = ""
    text: Said = ""
    refusal: Said = ""
    logprobs: Tokens = None


class _Item(IgnoringExtras):
    type: str
    content: list[_Part] | None = None
    call_id: str = ""
    name: str = ""
    arguments: str = ""
    input: str = ""


class _Details(IgnoringExtras):
    cached_tokens: Count = 0
    reasoning_tokens: Count = 0


class _Usage(IgnoringExtras):
    input_tokens: Count = 0
    output_tokens: Count = 0
    input_tokens_details: _Details | None = None
    output_tokens_details: _Details | None = None

    @property
    def spent(self) -> TokenUsage:
        """This usage as a `TokenUsage`; cached tokens are never more than the prompt's."""
        cached = self.input_tokens_details.cached_tokens if self.input_tokens_details else 0
        thought = self.output_tokens_details.reasoning_tokens if self.output_tokens_details else 0
        details = {"reasoning_tokens": thought} if thought else {}
        return TokenUsage(
            self.input_tokens, self.output_tokens, min(cached, self.input_tokens), details
        )


class _UsageOnly(IgnoringExtras):
    usage: _Usage | None = None


class _Incomplete(IgnoringExtras):
    reason: str = ""


class _Answer(IgnoringExtras):
    output: list[_Item]
    status: str = "completed"
    incomplete_details: _Incomplete | None = None


def _candidate(read: _Answer, said: Json, spent: TokenUsage) -> Candidate:
    message = _message(read.output)
    cut = read.incomplete_details.reason if read.incomplete_details else ""
    ended = "tool_calls" if message.tool_calls else "stop"
    reason = _INCOMPLETE.get(cut, ended)
    tokens = [token for part in _parts(read.output) for token in part.logprobs or ()]
    return Candidate(
        message=message,
        completion_tokens=spent.completion_tokens,
        logprob=logprob_of(message, tokens),
        finished=reason != LENGTH,
        prompt_tokens=spent.prompt_tokens,
        spent=spent,
        finish_reason=reason,
        logprobs={"content": tokens} if tokens else None,
        native=NativeAnswer("responses", said),
    )


def _message(items: Sequence[_Item]) -> Message:
    parts = list(_parts(items))
    text = "".join(part.text for part in parts)
    calls = tuple(_call(item) for item in items if item.type in _KINDS)
    wire = plain_message(Message("assistant", text, calls))
    if refusal := "".join(part.refusal for part in parts):
        wire["refusal"] = refusal
    thoughts = [part for item in items if item.type == "reasoning" for part in item.content or ()]
    if thought := "".join(part.text for part in thoughts):
        wire["reasoning_content"] = thought
    return Message("assistant", text, calls, wire=wire)


def _parts(items: Sequence[_Item]) -> Iterator[_Part]:
    for item in items:
        if item.type == "message":
            yield from item.content or ()


def _call(item: _Item) -> ToolCall:
    if item.type == "custom_tool_call":
        return ToolCall(item.name, item.input, item.call_id, "custom")
    return ToolCall(item.name, item.arguments, item.call_id)

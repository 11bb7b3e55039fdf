"""Requests to models in OTLP/JSON exports: spans, their events, and events among the logs.

The current conventions keep a request's messages in `gen_ai.system_instructions`,
`gen_ai.input.messages` and `gen_ai.output.messages`, as attributes of the span or of an event
`gen_ai.client.inference.operation.details`. Earlier ones have an event for each message, named
`gen_ai.user.message` and the like, and `gen_ai.choice` for the answer.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from qguide.qnet.errors import RecordError
from qguide.qnet.types import Message, Role, ToolCall
from qguide.training.recordings.json_stream import parse_text
from qguide.training.recordings.turns import read_turns, to_message

_SCALARS: Final = ("stringValue", "boolValue", "doubleValue")
_ROLES: Final[tuple[Role, ...]] = ("system", "developer", "user", "assistant", "tool")
_THOUGHTS: Final = ("reasoning", "thinking")
"""Parts that a chat's next request does not repeat; a served Q model never reads them."""


def attributes_of(entries: object) -> dict[str, Any]:
    """A list of OTLP key-value pairs as a mapping; what is malformed is left out."""
    found: dict[str, Any] = {}
    for entry in entries if isinstance(entries, list) else ():
        if isinstance(entry, Mapping) and isinstance(entry.get("key"), str):
            found[entry["key"]] = any_value(entry.get("value"))
    return found


def any_value(value: object) -> Any:
    """An OTLP `AnyValue` as plain JSON; None if it is empty or of bytes."""
    if not isinstance(value, Mapping):
        return None
    for scalar in _SCALARS:
        if scalar in value:
            return value[scalar]
    if "intValue" in value:  # a text in OTLP/JSON, because JSON's numbers may lose digits
        try:
            return int(value["intValue"])
        except (TypeError, ValueError):
            return None
    if isinstance(array := value.get("arrayValue"), Mapping):
        items = array.get("values")
        return [any_value(item) for item in items] if isinstance(items, list) else []
    if isinstance(pairs := value.get("kvlistValue"), Mapping):
        return attributes_of(pairs.get("values"))
    return None


def structured(value: object, name: str) -> Any:
    """A structured attribute, which spans may hold as JSON text."""
    if not isinstance(value, str):
        return value
    try:
        return parse_text(value)
    except RecordError as error:
        raise RecordError(f"{name} cannot be read; it may have been cut off: {error}") from error


def messages_of(value: object, name: str) -> list[Message]:
    """Messages made of parts, `gen_ai.input.messages` and its kin."""
    return [
        message
        for index, row in enumerate(_listed(value, name))
        for message in _messages_of_row(row, f"{name}[{index}]")
    ]


def instructions_of(value: object, name: str) -> list[Message]:
    """The system message of `gen_ai.system_instructions`, a list of parts."""
    return _messages_of_row({"role": "system", "parts": _listed(value, name)}, name)


def _listed(value: object, name: str) -> Sequence[object]:
    rows = structured(value, name)
    if not isinstance(rows, Sequence) or isinstance(rows, str):
        raise RecordError(f"{name} is not a list")
    return rows


def _messages_of_row(row: object, place: str) -> list[Message]:
    """One message; several tool results in one are as many messages."""
    if not isinstance(row, Mapping) or row.get("role") not in _ROLES:
        raise RecordError(f"{place}.role is none of {', '.join(_ROLES)}")
    parts = row.get("parts")
    if parts is None and "content" in row:
        return read_turns([row], place).messages  # a chat's shape, which some instrumentations keep
    if not isinstance(parts, Sequence) or isinstance(parts, str):
        raise RecordError(f"{place}.parts is not a list")
    texts: list[str] = []
    calls: list[ToolCall] = []
    results: list[Message] = []
    for index, part in enumerate(parts):
        where = f"{place}.parts[{index}]"
        kind = part.get("type") if isinstance(part, Mapping) else None
        match kind:
            case "text":
                texts.append(_text(part.get("content"), where))
            case "tool_call":
                calls.append(_call(part, where))
            case "tool_call_response":
                results.append(_result(part))
            case str() if kind in _THOUGHTS:
                pass
            case _:
                raise RecordError(f"{where} is not text or a tool call; Q models read only text")
    if results and not texts and not calls:
        return results
    message = Message(row["role"], "\n".join(texts), tuple(calls))
    return [*results, message] if texts or calls else []


def _text(value: object, where: str) -> str:
    if not isinstance(value, str):
        raise RecordError(f"{where}.content is not a text")
    return value


def _call(part: Mapping[str, Any], where: str) -> ToolCall:
    name, arguments = part.get("name"), part.get("arguments")
    if not isinstance(name, str) or not name:
        raise RecordError(f"{where}.name is not a text")
    text = arguments if isinstance(arguments, str) else json.dumps(arguments or {})
    return ToolCall(name, text, _id(part))


def _result(part: Mapping[str, Any]) -> Message:
    response = part.get("response", part.get("result"))  # `result` in early instrumentations
    if response is None:
        text = ""
    else:
        text = response if isinstance(response, str) else json.dumps(response, ensure_ascii=False)
    return Message("tool", text, tool_call_id=_id(part))


def _id(part: Mapping[str, Any]) -> str:
    said = part.get("id")
    return said if isinstance(said, str) else ""


INPUT: Final = "gen_ai.input.messages"
OUTPUT: Final = "gen_ai.output.messages"
INSTRUCTIONS: Final = "gen_ai.system_instructions"
CONVERSATION: Final = "gen_ai.conversation.id"
AGENT: Final = "gen_ai.agent.name"
_DETAILS: Final = "gen_ai.client.inference.operation.details"
_CHOICE: Final = "gen_ai.choice"
_ROLE_OF_EVENT: Final = {f"gen_ai.{role}.message": role for role in ("system", "user", "assistant", "tool")}
_INFERENCE: Final = (None, "chat", "generate_content", "text_completion")
"""Operations that ask a model; others, such as `invoke_agent`, repeat what these say."""


@dataclass(slots=True)
class Fragment:
    """A part of one request: a span with its events, or one event of the logs.

    Attributes:
        attributes: of the span or event, its resource's below them.
    """

    trace: str
    span: str
    time_ns: int
    attributes: Mapping[str, Any]
    asked: list[Message] = field(default_factory=list)
    answered: list[Message] = field(default_factory=list)
    flaw: str = ""

    def add(self, name: str, attributes: Mapping[str, Any]) -> None:
        """Add the messages of the span itself, or of an event with that name."""
        if name in ("", _DETAILS):
            self._add_attributes(attributes)
        elif name == _CHOICE:
            self._add_choice(attributes)
        elif role := _ROLE_OF_EVENT.get(name):
            self.asked.append(_event_message(attributes, role, name))

    def _add_attributes(self, attributes: Mapping[str, Any]) -> None:
        if attributes.get("gen_ai.operation.name") not in _INFERENCE:
            return
        if (value := attributes.get(INSTRUCTIONS)) is not None:
            self.asked += instructions_of(value, INSTRUCTIONS)
        if (value := attributes.get(INPUT)) is not None:
            self.asked += messages_of(value, INPUT)
        if (value := attributes.get(OUTPUT)) is not None:
            rows = structured(value, OUTPUT)
            # Several answers to one request: which one the agent took shows in its next request.
            first = rows[:1] if isinstance(rows, list) else rows
            self.answered += messages_of(first, OUTPUT)

    def _add_choice(self, body: Mapping[str, Any]) -> None:
        if body.get("index") in (None, 0):
            said = structured(body.get("message", body), _CHOICE)
            self.answered.append(_event_message(said, "assistant", _CHOICE))


def fragments_of(export: object) -> Iterator[Fragment]:
    """Spans and events of one export, in order."""
    if not isinstance(export, Mapping) or not {"resourceSpans", "resourceLogs"} & set(export):
        raise RecordError("it has neither resourceSpans nor resourceLogs; expected OTLP/JSON")
    for shared, span in _items(export, "resourceSpans", "scopeSpans", "spans"):
        attributes = shared | attributes_of(span.get("attributes"))
        fragment = _fragment(span, attributes, span.get("startTimeUnixNano"))
        parts = [("", attributes)]
        for event in objects_in(span.get("events")):
            parts.append((str(event.get("name")), _event_body(event)))
        yield _filled(fragment, parts)
    for shared, log in _items(export, "resourceLogs", "scopeLogs", "logRecords"):
        body = _event_body(log)
        name = str(log.get("eventName") or body.get("event.name"))
        time = log.get("timeUnixNano") or log.get("observedTimeUnixNano")
        yield _filled(_fragment(log, shared | body, time), [(name, body)])


def _fragment(item: Mapping[str, Any], attributes: dict[str, Any], time: object) -> Fragment:
    trace, span = (str(item.get(name) or "").lower() for name in ("traceId", "spanId"))
    return Fragment(trace, span, _time(time), attributes)


def _filled(fragment: Fragment, parts: list[tuple[str, dict[str, Any]]]) -> Fragment:
    try:
        for name, attributes in parts:
            fragment.add(name, attributes)
    except RecordError as error:
        fragment.flaw = str(error)
    return fragment


def _items(
    export: Mapping[str, Any], resources: str, scopes: str, items: str
) -> Iterator[tuple[dict[str, Any], Mapping[str, Any]]]:
    for resource in objects_in(export.get(resources)):
        described = resource.get("resource")
        entries = described.get("attributes") if isinstance(described, Mapping) else None
        shared = attributes_of(entries)
        for scope in objects_in(resource.get(scopes)):
            for item in objects_in(scope.get(items)):
                yield shared, item


def objects_in(values: object) -> Iterator[Mapping[str, Any]]:
    """The objects of a list; nothing of anything else."""
    for value in values if isinstance(values, list) else ():
        if isinstance(value, Mapping):
            yield value


def _event_body(event: Mapping[str, Any]) -> dict[str, Any]:
    """Attributes of an event and its body, which may be an attribute as JSON text."""
    found = attributes_of(event.get("attributes"))
    for body in (any_value(event.get("body")), found.get("gen_ai.event.content")):
        try:
            said = structured(body, "body") if body is not None else None
        except RecordError:
            continue  # a text that is not the event's data
        if isinstance(said, Mapping):
            found |= said
    return found


def _event_message(body: object, role: str, name: str) -> Message:
    """A message of an event for each, OpenAI's shape in all but the id of a tool's result."""
    if not isinstance(body, Mapping):
        raise RecordError(f"{name} has no message")
    row = {"role": body.get("role") or role, "content": body.get("content")}
    if (calls := body.get("tool_calls")) is not None:
        row["tool_calls"] = structured(calls, f"{name}.tool_calls")
    if row["role"] == "tool":
        row["tool_call_id"] = body.get("id")
    if isinstance(row["content"], Mapping):
        raise RecordError(f"{name}.content is not a text")
    return to_message(row, name)


def _time(value: object) -> int:
    try:
        return int(str(value))
    except ValueError:
        return 0

"""OTLP/JSON: the values of attributes, and messages of the GenAI semantic conventions."""

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

from qguide.qnet.errors import RecordError
from qguide.qnet.types import Message, Role, ToolCall
from qguide.training.recordings.json_stream import parse_text
from qguide.training.recordings.turns import read_turns

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
    rows = structured(value, name)
    if not isinstance(rows, Sequence) or isinstance(rows, str):
        raise RecordError(f"{name} is not a list")
    return [
        message
        for index, row in enumerate(rows)
        for message in _messages_of_row(row, f"{name}[{index}]")
    ]


def instructions_of(value: object, name: str) -> list[Message]:
    """The system message of `gen_ai.system_instructions`, a list of parts."""
    parts = structured(value, name)
    if not isinstance(parts, Sequence) or isinstance(parts, str):
        raise RecordError(f"{name} is not a list")
    return _messages_of_row({"role": "system", "parts": parts}, name)


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

"""Gemini's turns as the messages of a chat completion. Pure.

Gemini's calls need no ids: a result belongs to the first open call of its name. A chat completion
has an id for each, so calls without one get their place in the conversation.
"""

import base64
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from qguide.qnet.dialects.messages_requests import SIGNATURE, arguments_of
from qguide.qnet.dialects.shapes import THOUGHTS, Json, OpenCalls
from qguide.qnet.errors import MalformedHistoryError
from qguide.qnet.openai_messages import PART_END
from qguide.qnet.turns import paced
from qguide.server.gemini.schemas import Content, GeminiPart, GeminiResult

_RESULT: Final = ("output", "result")
"""Only names in the response of a function whose text is all that it says."""
_ERROR: Final = "error"


def chat_turns(system: Content | None, contents: Sequence[Content]) -> list[Json]:
    """The messages of a chat completion."""
    turns: list[Json] = []
    if system and system.parts:
        parts = [_part(part, "systemInstruction.parts") for part in system.parts]
        turns.append({"role": "system", "content": _joined(parts)})
    open_calls = OpenCalls()
    for index, content in enumerate(paced(contents)):
        place = f"contents[{index}].parts"
        if content.role == "model":
            turns.append(_model_turn(content.parts or (), index, place))
            open_calls = OpenCalls(turns[-1].get("tool_calls", ()))
        else:
            turns.extend(_user_turns(content.parts or (), open_calls, place))
    return turns


def signature_of(field: str) -> str:
    """Signature of a thought, which names the upstream's field; Gemini's are base64."""
    return base64.b64encode(f"{SIGNATURE}{field}".encode()).decode()


_FIELDS: Final = {signature_of(field): field for field in THOUGHTS}


def _model_turn(parts: Sequence[GeminiPart], index: int, place: str) -> Json:
    texts: list[str] = []
    calls: list[Json] = []
    thoughts: dict[str, list[str]] = {}
    for number, part in enumerate(paced(parts)):
        if part.thought:
            # An upstream gets back only thoughts of its own.
            if field := _FIELDS.get(part.thought_signature or ""):
                thoughts.setdefault(field, []).append(part.text or "")
        elif call := part.function_call:
            function = {"name": call.name, "arguments": arguments_of(call.args or {})}
            call_id = call.id or f"call_{index}_{number}"
            calls.append({"id": call_id, "type": "function", "function": function})
        elif part.text is not None:
            texts.append(part.text)
        else:
            raise _misplaced(f"{place}[{number}]", "the model's turn has text and function calls")
    text = "".join(texts)
    turn: Json = {"role": "assistant", "content": None if calls and not text else text}
    turn |= {field: "".join(said) for field, said in thoughts.items()}
    return turn | {"tool_calls": calls} if calls else turn


def _user_turns(parts: Sequence[GeminiPart], open_calls: OpenCalls, place: str) -> Iterator[Json]:
    """Results of functions, then a message of everything else."""
    others: list[Json] = []
    for number, part in enumerate(paced(parts)):
        here = f"{place}[{number}]"
        if result := part.function_response:
            call_id = _answered(result, open_calls, here)
            content = _text_of(result.response or {})
            yield {"role": "tool", "tool_call_id": call_id, "content": content}
        else:
            others.append(_part(part, here))
    if others or not parts:
        yield {"role": "user", "content": _joined(others)}


def _answered(result: GeminiResult, open_calls: OpenCalls, place: str) -> str:
    """The id of the call that a result answers."""
    if call_id := open_calls.answered_by(result.name, result.id):
        return call_id
    raise MalformedHistoryError(
        f"{place} answers no open call of {result.name[:40]!r} in the model's turn before; "
        "send the turn that called it, with the same name and id"
    )


def _text_of(response: Mapping[str, Any]) -> str:
    if len(response) == 1:
        [(name, value)] = response.items()
        if name in _RESULT and isinstance(value, str):
            return value
        if name == _ERROR and isinstance(value, str):
            return f"Error: {value}"
    return json.dumps(response, ensure_ascii=False)


def _part(part: GeminiPart, place: str) -> Json:
    if part.text is not None:
        return {"type": "text", "text": part.text}
    if blob := part.inline_data:
        return _file(blob.mime_type, f"data:{blob.mime_type};base64,{blob.data}", place)
    if file := part.file_data:
        return _file(file.mime_type or "image/", file.file_uri, place)
    raise _misplaced(place, "a user's turn has text, images, PDF files and results of functions")


def _file(mime_type: str, address: str, place: str) -> Json:
    if mime_type.startswith("image/"):
        return {"type": "image_url", "image_url": {"url": address}}
    if mime_type == "application/pdf" and address.startswith("data:"):
        return {"type": "file", "file": {"filename": "document.pdf", "file_data": address}}
    raise _misplaced(place, f"{mime_type[:40]!r} is neither an image nor a PDF file that is sent")


def _joined(parts: Sequence[Json]) -> str | list[Json]:
    """One text if there is nothing else: not every upstream takes parts."""
    if all(part["type"] == "text" for part in parts):
        return PART_END.join(part["text"] for part in parts)
    return list(parts)


def _misplaced(place: str, why: str) -> MalformedHistoryError:
    return MalformedHistoryError(f"{place} cannot be translated for an upstream: {why}; remove it")

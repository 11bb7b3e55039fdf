"""Chunks of a chat completion's stream: from a completion, and to one, or on while it is being written.

Pure, but for the ids of calls that come without one.
"""

import uuid
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from qguide.qnet.body_limits import exceeds_max_depth
from qguide.qnet.chat_messages import text_of
from qguide.qnet.dialects.shapes import Json, PiecedTexts, pieces_of

_CALLS: Final = "tool_calls"
_OF_CHUNKS: Final = ("choices", "object")


_OF_ALL: Final = ("id", "created", "model", "system_fingerprint")
_OF_CHOICES: Final = ("index", "message", "logprobs", "finish_reason")


def chunks_of(completion: Json, *, include_usage: bool, begun: bool = False) -> Iterator[Json]:
    """Split a completion into the chunks of a stream; the last of its choices has the fields that are not OpenAI's.

    Args:
        begun: what the choices say is known already.
    """
    parts_of = _end_of if begun else _parts_of
    head: Json = {name: completion[name] for name in _OF_ALL if name in completion}
    head["object"] = "chat.completion.chunk"
    if include_usage:
        head["usage"] = None
    own = {name: value for name, value in completion.items() if name not in (*head, "choices", "usage", "object")}
    *others, last = (head | {"choices": [part]} for choice in completion["choices"] for part in parts_of(choice))
    yield from others
    yield last | own
    if include_usage:
        yield head | {"choices": [], "usage": completion["usage"]}


def _parts_of(choice: Json) -> Iterator[Json]:
    """Chunks of one choice: role, content, tool calls and finish reason."""
    message = dict(choice["message"])
    content, calls = message.pop("content", None), message.pop("tool_calls", None) or []
    opening = {name: value for name, value in message.items() if value is not None}
    called = calls or message.get("function_call")
    yield _part(choice, opening | {"content": None if called and not content else ""})
    logprobs = choice.get("logprobs")
    if logprobs:  # tokens may end inside a character, so the content is not split
        yield _part(choice, {"content": content}, logprobs=logprobs)
    else:
        for piece in pieces_of(content or ""):
            yield _part(choice, {"content": piece})
    for index, call in enumerate(calls):
        if "function" not in call:  # the input of a custom tool is sent in one piece
            yield _part(choice, {"tool_calls": [{"index": index} | call]})
            continue
        function = call["function"]
        opened = call | {"index": index, "function": function | {"arguments": ""}}
        yield _part(choice, {"tool_calls": [opened]})
        filled = {"index": index, "function": {"arguments": function["arguments"]}}
        yield _part(choice, {"tool_calls": [filled]})
    yield from _end_of(choice)


def _end_of(choice: Json) -> Iterator[Json]:
    rest = {name: value for name, value in choice.items() if name not in _OF_CHOICES}
    yield _part(choice, {}, finish_reason=choice["finish_reason"]) | rest


def _part(choice: Json, delta: Json, *, logprobs: object = None, finish_reason: str | None = None) -> Json:
    return {"index": choice["index"], "delta": delta, "logprobs": logprobs, "finish_reason": finish_reason}


class PassedChunks:
    """Chunks of a completion with one choice, whose parts come while it is being written.

    Args:
        head: its id, time and model.
    """

    def __init__(self, head: Json, *, include_usage: bool) -> None:
        self._head = head
        self._include_usage = include_usage
        self._has_begun = False

    def chunk_of(self, part: Json) -> Json:
        """The chunk with the next part."""
        opening = {} if self._has_begun else {"role": "assistant"}
        self._has_begun = True
        usage = {"usage": None} if self._include_usage else {}
        choice = _part({"index": 0}, opening | part["delta"], logprobs=part["logprobs"])
        return {**self._head, "object": "chat.completion.chunk", **usage, "choices": [choice]}

    def rest_of(self, completion: Json) -> Iterator[Json]:
        """The chunks after those that have come, if any has."""
        if self._has_begun:
            completion = completion | self._head
        return chunks_of(completion, include_usage=self._include_usage, begun=self._has_begun)


class Deltas:
    """New parts of the first choice of a stream, in the form in which clients add them up.

    What is malformed is left out: put together it is no answer, which is told at its end.
    """

    def __init__(self) -> None:
        self._calls: list[bool] = []  # which have their name

    def of(self, chunk: Mapping[str, Any]) -> Json | None:
        """The part that a chunk brings; None if it brings nothing that is to be read."""
        choice = next((row for row in _rows(chunk.get("choices")) if row.get("index") == 0), {})
        if exceeds_max_depth(choice):
            return None
        said, logprobs = choice.get("delta"), choice.get("logprobs")
        fields = said.items() if isinstance(said, dict) else ()
        delta = {name: new for name, value in fields if (new := self._new(name, value))}
        if not (isinstance(logprobs, dict) and all(_are_tokens(logprobs.get(name)) for name in ("content", "refusal"))):
            logprobs = None
        return {"delta": delta, "logprobs": logprobs} if delta or logprobs else None

    def _new(self, name: str, value: Any) -> Any:
        """The new part of a field; something false if there is none."""
        match name:
            case "role":
                return None
            case "content" | "refusal":
                return text_of(_rows(value), separator="") if isinstance(value, list) else _text(value)
            case "tool_calls":
                return [call for piece in _rows(value) if (call := self._call(piece))]
        return value

    def _call(self, piece: Mapping[str, Any]) -> Json | None:
        """The piece of a call; its id and its type come with the first one, and its name comes once."""
        index = piece.get("index", len(self._calls))
        opens = index == len(self._calls)
        if opens:
            self._calls.append(False)
        if not isinstance(index, int) or not 0 <= index < len(self._calls):
            return None
        kind = "custom" if isinstance(piece.get("custom"), dict) else "function"
        said = piece.get(kind)
        texts = {k: v for k in ("name", "arguments", "input") if isinstance(said, dict) and (v := _text(said.get(k)))}
        if self._calls[index]:
            texts.pop("name", None)
        self._calls[index] = self._calls[index] or "name" in texts
        if not opens and not texts:
            return None
        own = {"id": _text(piece.get("id")) or f"call_{uuid.uuid4().hex}", "type": kind} if opens else {}
        return {"index": index, **own, kind: ({"arguments": ""} if kind == "function" else {}) | texts}


def _are_tokens(rows: object) -> bool:
    return rows is None or _rows(rows) == rows


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""


def assembled_completion(chunks: Sequence[Mapping[str, Any]]) -> Json | None:
    """The completion; None if a choice has no end, or if there is none.

    Texts of a delta follow each other, whatever the field is called (`reasoning_content`); calls
    are told apart by their index.
    """
    answer: Json = {"object": "chat.completion"}
    choices: dict[int, Json] = {}
    texts = PiecedTexts()
    for chunk in chunks:
        # Of any other field the last chunk that has one is right.
        answer |= {k: v for k, v in chunk.items() if k not in _OF_CHUNKS and v is not None}
        for piece in _rows(chunk.get("choices")):
            index = piece.get("index")
            if isinstance(index, int):
                empty = {"index": index, "message": {"role": "assistant", "content": None}}
                _extend(choices.setdefault(index, empty), piece, texts)
    texts.join()
    ended = all(choice.get("finish_reason") for choice in choices.values())
    if not choices or not (ended or (chunks and chunks[-1] == {})):
        return None
    return answer | {"choices": [choices[index] for index in sorted(choices)]}


def _extend(choice: Json, piece: Mapping[str, Any], texts: PiecedTexts) -> None:
    for name, value in piece.items():
        if name == "delta" and isinstance(value, dict):
            _extend_message(choice["message"], value, texts)
        elif name == "logprobs" and isinstance(value, dict):
            _extend_tokens(choice.setdefault(name, {}), value)
        elif name != "index" and value is not None:
            choice[name] = value


def _extend_message(message: Json, delta: Mapping[str, Any], texts: PiecedTexts) -> None:
    for name, value in delta.items():
        if name == _CALLS:
            _extend_calls(message.setdefault(name, []), _rows(value), texts)
        elif name == "function_call" and isinstance(value, dict):
            _extend_function(message.setdefault(name, {}), value, texts)
        elif isinstance(value, str) and name != "role":
            texts.add(message, name, value)
        elif isinstance(value, list) and isinstance(message.get(name), list):
            message[name] += value
        elif value is not None:
            message[name] = value


def _extend_calls(calls: list[Json], pieces: Sequence[Mapping[str, Any]], texts: PiecedTexts) -> None:
    for piece in pieces:
        index = piece.get("index", len(calls))
        if index == len(calls):
            calls.append({"type": "function"})
        if not isinstance(index, int) or not 0 <= index < len(calls):
            continue
        call = calls[index]
        for name in ("id", "type"):
            if isinstance(value := piece.get(name), str) and value:
                call[name] = value
        for name in ("function", "custom"):
            if isinstance(value := piece.get(name), dict):
                _extend_function(call.setdefault(name, {}), value, texts)


def _extend_function(function: Json, piece: Mapping[str, Any], texts: PiecedTexts) -> None:
    """A name comes whole, and from some upstreams again and again; arguments come in pieces."""
    if isinstance(name := piece.get("name"), str) and name:
        function["name"] = name
    for field in ("arguments", "input"):
        if isinstance(value := piece.get(field), str):
            texts.add(function, field, value)


def _extend_tokens(logprobs: Json, piece: Mapping[str, Any]) -> None:
    for name, rows in piece.items():
        if isinstance(rows, list):
            known = logprobs.get(name)
            logprobs[name] = known = known if isinstance(known, list) else []
            known += rows
        else:
            logprobs.setdefault(name, rows)


def _rows(value: object) -> list[Json]:
    return [row for row in value if isinstance(row, dict)] if isinstance(value, list) else []

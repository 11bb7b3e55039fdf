"""Chunks of an OpenAI chat completion stream. Pure."""

from collections.abc import Iterator
from typing import Final

from qguide.server.streaming.events import Json, pieces_of

_OF_ALL: Final = ("id", "created", "model", "system_fingerprint")
_OF_CHOICES: Final = ("index", "message", "logprobs", "finish_reason")


def chunks_of(completion: Json, *, include_usage: bool) -> Iterator[Json]:
    """Split a finished completion into the chunks of a stream.

    Args:
        completion: the response body to the same request without `stream`; fields that are not
            OpenAI's are sent in the chunk that ends the last choice.
        include_usage: append a chunk without choices that has the usage.
    """
    head: Json = {name: completion[name] for name in _OF_ALL if name in completion}
    head["object"] = "chat.completion.chunk"
    if include_usage:
        head["usage"] = None
    own = {
        name: value
        for name, value in completion.items()
        if name not in (*head, "choices", "usage", "object")
    }
    *others, last = (
        head | {"choices": [part]} for choice in completion["choices"] for part in _parts_of(choice)
    )
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
    rest = {name: value for name, value in choice.items() if name not in _OF_CHOICES}
    yield _part(choice, {}, finish_reason=choice["finish_reason"]) | rest


def _part(
    choice: Json, delta: Json, *, logprobs: object = None, finish_reason: str | None = None
) -> Json:
    return {
        "index": choice["index"],
        "delta": delta,
        "logprobs": logprobs,
        "finish_reason": finish_reason,
    }

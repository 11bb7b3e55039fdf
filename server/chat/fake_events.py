"""Streams of the fake upstream's other dialects, written apart from the server's own."""

import json
from collections.abc import Callable, Iterable, Iterator
from typing import Final

from fastapi.responses import Response, StreamingResponse

from qguide.server.streaming.events import Json, event

_STREAMING: Final = ("stream", "stream_options")
_TEXTS: Final = {"text": "text_delta", "thinking": "thinking_delta"}


def without_stream(body: Json) -> Json:
    """The body of a request, but for how its answer is to be sent."""
    return {name: value for name, value in body.items() if name not in _STREAMING}


def as_stream(answered: Response, events: Callable[[Json], Iterable[Json]]) -> Response:
    """An answer as a stream of its dialect's events; as it is if it is none, by a fault."""
    try:
        said = json.loads(bytes(answered.body))
        written = [event(one, one["type"]) for one in events(said)]
    except (KeyError, TypeError, ValueError):
        return answered
    return StreamingResponse(iter(written), media_type="text/event-stream")


def message_events(message: Json) -> Iterator[Json]:
    """The events of a message of Anthropic's."""
    yield {"type": "message_start", "message": message | {"content": [], "stop_reason": None}}
    for index, block in enumerate(message["content"]):
        kind, place = block["type"], {"index": index}
        empty: Json = {"input": {}} if kind == "tool_use" else {kind: ""}
        yield {"type": "content_block_start", **place, "content_block": block | empty}
        if kind == "tool_use":
            delta: Json = {"type": "input_json_delta", "partial_json": json.dumps(block["input"])}
        else:
            delta = {"type": _TEXTS[kind], kind: block[kind]}
        yield {"type": "content_block_delta", **place, "delta": delta}
        yield {"type": "content_block_stop", **place}
    end = {name: message[name] for name in ("stop_reason", "stop_sequence")}
    yield {"type": "message_delta", "delta": end, "usage": message["usage"]}
    yield {"type": "message_stop"}


def response_events(response: Json) -> Iterator[Json]:
    """The first and the last event of a response; those between them say nothing more."""
    yield {"type": "response.created", "response": response | {"status": "in_progress"}}
    yield {"type": "response.completed", "response": response}

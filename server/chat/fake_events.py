"""Streams of the fake upstream's other dialects."""

import json
from collections.abc import Callable, Iterable
from typing import Final

from fastapi.responses import Response, StreamingResponse

from qguide.server.anthropic.events import events_of as message_events
from qguide.server.responses.events import closing_events as response_events
from qguide.server.streaming.events import Json, event

__all__ = ["as_stream", "message_events", "response_events", "without_stream"]

_STREAMING: Final = ("stream", "stream_options")


def without_stream(body: Json) -> Json:
    """What a request asks for, but for how it is to be sent."""
    return {name: value for name, value in body.items() if name not in _STREAMING}


def as_stream(answered: Response, events: Callable[[Json], Iterable[Json]]) -> Response:
    """An answer as a stream of its dialect's events; as it is if it is none, by a fault."""
    try:
        said = json.loads(bytes(answered.body))
        written = [event(one, one["type"]) for one in events(said)]
    except (KeyError, TypeError, ValueError):
        return answered
    return StreamingResponse(iter(written), media_type="text/event-stream")

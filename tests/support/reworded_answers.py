"""Answers of the fake upstream in another dialect, whole or as a stream."""

import json
from collections.abc import Callable, Iterable

from fastapi.responses import JSONResponse, Response, StreamingResponse

from qguide.qnet.dialects.shapes import Json
from qguide.server.http.event_stream import event


def as_stream(answered: Response, events: Callable[[Json], Iterable[Json]]) -> Response:
    """An answer as a stream of its dialect's events; as it is if it is none, by a fault."""
    try:
        said = json.loads(bytes(answered.body))
        written = [event(one, one.get("type", "")) for one in events(said)]
    except (KeyError, TypeError, ValueError):
        return answered
    return StreamingResponse(iter(written), media_type="text/event-stream")


def reworded(answered: Response, to_dialect: Callable[[Json], Json]) -> Response:
    """An answer in another dialect; as it is if it is no chat completion, by a fault."""
    try:
        return JSONResponse(to_dialect(json.loads(bytes(answered.body))))
    except (IndexError, KeyError, ValueError):
        return answered


def waiting(answered: Response) -> dict[str, str]:
    """The Retry-After header of an answer, if it has one."""
    wait = answered.headers.get("retry-after")
    return {"Retry-After": wait} if wait else {}

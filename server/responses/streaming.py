"""Writer of a response as a stream of semantic events."""

from collections.abc import Iterable, Iterator
from itertools import count

from qguide.qnet.dialects.responses_answers import (
    closing_events,
    failure_events,
    opening_events,
)
from qguide.qnet.dialects.shapes import Json
from qguide.server.http.event_stream import HEARTBEAT, event
from qguide.server.responses.output import failed


class ResponseWriter:
    """The events of one response, numbered in their order; implements `EventWriter`."""

    def __init__(self, response: Json) -> None:
        self._response = response
        self._opening = opening_events(response)
        self._numbers = count()

    def waiting(self) -> Iterable[bytes]:
        """The first events; from then on comments, which clients skip."""
        return tuple(self._opened()) or (HEARTBEAT,)

    def finished(self, answer: Json) -> Iterator[bytes]:
        """The output and the end."""
        yield from self._opened()
        yield from self._numbered(closing_events(answer))

    def failed(self, error: Json) -> Iterator[bytes]:
        """The error and the end."""
        yield from self._opened()
        yield from self._numbered(failure_events(failed(self._response, error), error))

    def _opened(self) -> Iterator[bytes]:
        """The first events, unless they have been written."""
        return self._numbered(self._opening)

    def _numbered(self, events: Iterable[Json]) -> Iterator[bytes]:
        for one in events:
            yield event(one | {"sequence_number": next(self._numbers)}, one["type"])

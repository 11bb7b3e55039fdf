"""Writer of a message as a stream of named events."""

from collections.abc import Iterable, Iterator
from typing import Final

from qguide.qnet.dialects.messages_answers import events_of
from qguide.qnet.dialects.shapes import Json
from qguide.server.streaming.events import event

_PING: Final = event({"type": "ping"}, "ping")


class MessageWriter:
    """Pings, then the events of the chosen candidate; implements `EventWriter`."""

    def waiting(self) -> Iterable[bytes]:
        """A ping, which clients skip."""
        return (_PING,)

    def finished(self, answer: Json) -> Iterator[bytes]:
        """The events of a message, from message_start to message_stop."""
        for one in events_of(answer):
            yield event(one, one["type"])

    def failed(self, error: Json) -> Iterable[bytes]:
        """The error, after which nothing comes."""
        return (event(error, "error"),)

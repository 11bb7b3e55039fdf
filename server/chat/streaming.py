"""Writer of a chat completion as a stream of chunks."""

from collections.abc import Iterable, Iterator

from qguide.qnet.dialects.chat_chunks import chunks_of
from qguide.qnet.dialects.shapes import Json
from qguide.server.streaming.events import DONE, HEARTBEAT, event


class ChunkWriter:
    """Heartbeats, then the chunks of the chosen candidate; implements `EventWriter`."""

    def __init__(self, *, include_usage: bool) -> None:
        self._include_usage = include_usage

    def waiting(self) -> Iterable[bytes]:
        """A comment, which clients skip."""
        return (HEARTBEAT,)

    def finished(self, answer: Json) -> Iterator[bytes]:
        """The chunks of a completion, and the end of the stream."""
        for chunk in chunks_of(answer, include_usage=self._include_usage):
            yield event(chunk)
        yield DONE

    def failed(self, error: Json) -> Iterable[bytes]:
        """The error, after which nothing comes."""
        return (event(error),)

"""Writer of a completion as a stream of its parts."""

from collections.abc import Iterable, Iterator

from qguide.server.streaming.events import DONE, HEARTBEAT, Json, event, pieces_of


class TextWriter:
    """Heartbeats, then the texts in parts; implements `EventWriter`."""

    def __init__(self, *, include_usage: bool) -> None:
        self._include_usage = include_usage

    def waiting(self) -> Iterable[bytes]:
        """A comment, which clients skip."""
        return (HEARTBEAT,)

    def finished(self, answer: Json) -> Iterator[bytes]:
        """The parts of a completion, and the end of the stream."""
        for part in parts_of(answer, include_usage=self._include_usage):
            yield event(part)
        yield DONE

    def failed(self, error: Json) -> Iterable[bytes]:
        """The error, after which nothing comes."""
        return (event(error),)


def parts_of(completion: Json, *, include_usage: bool) -> Iterator[Json]:
    """Split a finished completion into the parts of a stream."""
    more = ("choices", "usage", "qguide")
    head = {name: value for name, value in completion.items() if name not in more}
    last = len(completion["choices"]) - 1
    for choice in completion["choices"]:
        for piece in pieces_of(choice["text"]):
            yield head | {"choices": [choice | {"text": piece, "finish_reason": None}]}
        own = {"qguide": completion["qguide"]} if choice["index"] == last else {}
        yield head | {"choices": [choice | {"text": ""}]} | own
    if include_usage:
        yield head | {"choices": [], "usage": completion["usage"]}

"""Writer of a Gemini answer as a stream of server-sent events."""

from collections.abc import Iterable, Iterator
from typing import Final

from qguide.server.streaming.events import Json, event, pieces_of

_NOTHING: Final = b"\n\n"
"""The end of an event without data. Google's client for Python takes a comment for broken JSON."""


class ContentWriter:
    """Empty events, then the chosen candidate in pieces; implements `EventWriter`."""

    def waiting(self) -> Iterable[bytes]:
        """An empty event, which clients skip."""
        return (_NOTHING,)

    def finished(self, answer: Json) -> Iterator[bytes]:
        """Answers with one piece each; the last one has the usage and the guidance."""
        for one in chunks_of(answer):
            yield event(one)

    def failed(self, error: Json) -> Iterable[bytes]:
        """The error in place of an answer."""
        return (event(error),)


def chunks_of(answer: Json) -> Iterator[Json]:
    """The answers of a stream, which together are the whole answer. Pure."""
    [candidate] = answer["candidates"]
    same = {name: answer[name] for name in ("modelVersion", "responseId")}
    for part in candidate["content"]["parts"]:
        for piece in _pieces(part):
            content = {"role": "model", "parts": [piece]}
            yield {"candidates": [{"content": content, "index": candidate["index"]}], **same}
    yield answer | {"candidates": [candidate | {"content": {"role": "model", "parts": []}}]}


def _pieces(part: Json) -> Iterator[Json]:
    if "text" not in part:
        yield part
        return
    for piece in pieces_of(part["text"]):
        yield part | {"text": piece}

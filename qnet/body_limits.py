"""Limits of bodies from outside: the bytes and chunks of an answer, and the values and nesting of JSON.

httpx decompresses whatever arrives in one go: a kilobyte of gzip may hold a megabyte, and an
answer without end fills the memory. Here the limit stops both, and decompression is cut into
slices, between which an event loop serves others. So are chunks: each takes a call of httpx's
parser, and whatever one read of the socket brought is handed out without a pause.

JSON's values are counted before it is parsed: a byte of it may become a hundred in memory.

Python's recursion ends at about a thousand levels. Serialising happens deeper in the call stack
than parsing, so JSON that could just be parsed might not be serialisable.
"""

import asyncio
import zlib
from collections.abc import Awaitable, Callable, Iterator
from typing import Any, Final

import httpx

from qguide.qnet.turns import paced

ACCEPT_ENCODING: Final = "gzip"
"""For requests whose answers are read here: an encoding that can be taken in slices."""

MAX_CHUNKS: Final = 16_384
"""Chunks in which an answer may arrive; each costs as much as parsing some kilobytes."""
_EVENT_BYTES: Final = 16  # a stream of events may have one more chunk for so many bytes: none of its events is shorter

_SLICE_BYTES: Final = 64 * 1024
_SLICE_CHUNKS: Final = 16
_REST_S: Final = 0.002  # a loop that never rests keeps other threads, the device's among them, from the interpreter
_GZIP_WINDOW: Final = 16 + zlib.MAX_WBITS
_GZIP: Final = ("gzip", "x-gzip")
_PLAIN: Final = ("", "identity")
_SPENT_HEADERS: Final = (b"content-encoding", b"content-length", b"transfer-encoding")
_SHOWN_CHARACTERS: Final = 20
MOST_LEVELS = 100
MARKS: Final = (b",", b"[", b"{")
"""Bytes before a value; at most one for each, and none only for the first."""


class AnswerTooLargeError(Exception):
    """An answer has more bytes, chunks or values than the limit."""


class UnknownEncodingError(Exception):
    """An answer came in an encoding that was not asked for."""


class BoundedBody:
    """The body of one answer, of at most `max_bytes` as it arrives and decompressed; `events` allow more chunks."""

    def __init__(self, encoding: str, *, max_bytes: int, events: bool = False) -> None:
        encoding = encoding.strip().lower()
        if encoding not in (*_GZIP, *_PLAIN):
            shown = encoding[:_SHOWN_CHARACTERS]
            raise UnknownEncodingError(f"answered in the encoding {shown!r}; only gzip is read")
        self._max_bytes = max_bytes
        self._events = events
        self._arrived = 0
        self._chunks = 0
        self._size = 0
        self._parts: list[bytes] = []
        self._gzip = zlib.decompressobj(_GZIP_WINDOW) if encoding in _GZIP else None

    def add(self, raw: bytes) -> Iterator[None]:
        """Take what arrived; pauses between slices."""
        self._arrived += len(raw)
        self._check(self._arrived)
        self._chunks += 1
        if self._chunks > MAX_CHUNKS + self._events * self._arrived // _EVENT_BYTES:
            raise AnswerTooLargeError(f"answered in more than {MAX_CHUNKS:,} chunks")
        if self._chunks % _SLICE_CHUNKS == 0:
            yield
        if self._gzip is None:
            self._keep(raw)
            return
        while raw and not self._gzip.eof:  # what follows the stream is ignored, as httpx does
            self._keep(self._gzip.decompress(raw, _SLICE_BYTES))
            raw = self._gzip.unconsumed_tail
            if raw:
                yield

    @property
    def drips(self) -> bool:
        """True if it comes in chunks that are shorter than any event."""
        return self._arrived < _EVENT_BYTES * self._chunks

    def arrived(self, since: int = 0) -> bytes:
        """The bytes that have arrived so far, but for the first `since` parts."""
        return b"".join(self._parts[since:])

    @property
    def parts(self) -> int:
        """Number of parts that have arrived."""
        return len(self._parts)

    def content(self) -> bytes:
        """All of it; a gzip stream that was cut off is a `zlib.error`."""
        if self._gzip is not None and self._arrived and not self._gzip.eof:
            raise zlib.error("the gzip stream was cut off")
        return self.arrived()

    def _keep(self, part: bytes) -> None:
        self._size += len(part)
        self._check(self._size)
        self._parts.append(part)

    def _check(self, size: int) -> None:
        if size > self._max_bytes:
            raise AnswerTooLargeError(f"answered with more than {self._max_bytes:,} bytes")


async def read_bounded(
    response: httpx.Response,
    *,
    max_bytes: int,
    events: bool = False,
    heard: Callable[[bytes], Awaitable[None]] | None = None,
    cut_off: Callable[[bytes], None] | None = None,
) -> httpx.Response:
    """The same answer with its body, decompressed.

    Args:
        heard: gets each part as it comes.
        cut_off: gets what has arrived if the reading is cancelled.

    Raises:
        AnswerTooLargeError: it has more than `max_bytes`, compressed or not, or too many chunks.
        UnknownEncodingError: neither gzip nor plain.
        httpx.TransportError: the connection was lost.
        httpx.DecodingError: broken gzip.
    """
    encoding = response.headers.get("content-encoding", "")
    body = BoundedBody(encoding, max_bytes=max_bytes, events=events)
    try:
        async for raw in response.aiter_raw():
            known = body.parts
            for _ in body.add(raw):
                await asyncio.sleep(_REST_S if body.drips else 0)
            if heard:
                await heard(body.arrived(known))
        return _read(response, body)
    except asyncio.CancelledError:
        if cut_off:
            cut_off(body.arrived())
        raise
    except zlib.error as error:
        raise httpx.DecodingError(str(error), request=response.request) from error


def read_bounded_sync(response: httpx.Response, *, max_bytes: int) -> httpx.Response:
    """As `read_bounded`, for a thread without an event loop."""
    body = BoundedBody(response.headers.get("content-encoding", ""), max_bytes=max_bytes)
    try:
        for raw in response.iter_raw():
            for _ in body.add(raw):
                pass
        return _read(response, body)
    except zlib.error as error:
        raise httpx.DecodingError(str(error), request=response.request) from error


def _read(response: httpx.Response, body: BoundedBody) -> httpx.Response:
    headers = [(name, value) for name, value in response.headers.raw if name.lower() not in _SPENT_HEADERS]
    return httpx.Response(response.status_code, headers=headers, content=body.content(), request=response.request)


def check_number_of_values(content: bytes, max_values: int) -> None:
    """Refuse JSON of very many small values before it is parsed; marks within texts count as well."""
    if sum(map(content.count, MARKS)) > max_values:
        raise AnswerTooLargeError(f"answered with more than {max_values:,} JSON values")


def exceeds_max_depth(value: object, most: int = MOST_LEVELS) -> bool:
    """True if lists and objects are nested more than `most` levels deep."""
    level: list[Any] = [value] if isinstance(value, dict | list) else []
    for _ in range(most):
        level = [
            part
            for one in paced(level)
            for part in (one.values() if isinstance(one, dict) else one)
            if isinstance(part, dict | list)
        ]
    return bool(level)

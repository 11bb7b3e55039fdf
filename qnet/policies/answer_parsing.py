"""Answers of upstreams, parsed without keeping other requests waiting; streams as if come whole.

A candidate is scored when it is finished, so nothing is gained by reading its pieces one by one, but where it is the
only one and goes on to the caller as it comes. What is always gained is that an upstream that writes for ten minutes is
not silent: the limit is then the longest silence between two pieces, not the time that a whole answer takes.
"""

import asyncio
import gc
import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from threading import Lock
from typing import Any, Final, TypeVar

import httpx

from qguide.qnet.body_limits import check_number_of_values
from qguide.qnet.dialects.shapes import Json
from qguide.qnet.policies.answers import Completion, Refusal, loaded, read_refusal
from qguide.qnet.policies.upstream_dialects import Dialect

Parsed = TypeVar("Parsed")

_ON_LOOP_BYTES: Final = 64 * 1024  # up to here a hop to another thread costs more than it saves

_lock: Final = Lock()
_pauses = 0


async def parse(read: Callable[[bytes], Parsed], answer: bytes) -> Parsed:
    """Run `read` on the answer; on another thread if the answer is large."""
    if len(answer) <= _ON_LOOP_BYTES:
        return read(answer)
    return await asyncio.to_thread(_parse_large, read, answer)


def _parse_large(read: Callable[[bytes], Parsed], answer: bytes) -> Parsed:
    with _gc_paused():
        return read(answer)


@contextmanager
def _gc_paused() -> Iterator[None]:
    """No garbage collection in this process; pauses of several threads may overlap.

    JSON has no cycles to collect. But new lists set off collections, which visit all objects of the models with the
    interpreter's lock held: 1.8 s of the 2.1 s that an answer of 500,000 lists took.
    """
    global _pauses
    with _lock:
        _pauses += 1
        gc.disable()
    try:
        yield
    finally:
        with _lock:
            _pauses -= 1
            if not _pauses:
                gc.enable()


EVENTS: Final = "text/event-stream"
_DATA: Final = b"data:"
_DONE: Final = b"[DONE]"


def is_stream(response: httpx.Response) -> bool:
    """True if the answer is a stream of events."""
    return str(response.headers.get("content-type", "")).startswith(EVENTS)


def read_stream(dialect: Dialect, body: bytes) -> Completion | Refusal:
    """Read a stream that has arrived; never raises.

    A stream that broke off, and one that is none of the dialect, is a completion without candidates.
    """
    events = list(events_in(body))
    for event in events:
        error = _error_in(event)
        if error:
            return read_refusal(json.dumps({"error": error}).encode())
    whole = dialect.assembled(events)
    if whole is None:
        return Completion(is_object=bool(events))
    return dialect.read_answer(json.dumps(whole).encode())


def _error_in(event: Mapping[str, Any]) -> object:
    """The error that an event of any dialect tells; something false if it tells none."""
    kind = event.get("type")
    if kind == "response.failed":  # of Responses: the response has the error
        response = event.get("response")
        return isinstance(response, dict) and response.get("error")
    if kind == "error":  # of Messages with an object; of Responses with its fields in the event
        code_and_message = {name: event.get(name) for name in ("code", "message", "param")}
        return event.get("error") or code_and_message
    return kind is None and event.get("error")


def events_in(body: bytes) -> Iterator[Mapping[str, Any]]:
    """The data of the events that are JSON objects; `[DONE]` is an empty one."""
    for line in body.splitlines():
        if not line.startswith(_DATA):
            continue
        data = line.removeprefix(_DATA).strip()
        if data == _DONE:
            yield {}
            continue
        try:
            said = loaded(data)
        except (ValueError, RecursionError):
            continue
        if isinstance(said, dict):
            yield said


class PassedEvents:
    """Events of one answer that go on as they come.

    Args:
        read: the piece that an event brings; None if it brings none.
    """

    def __init__(self, read: Callable[[Mapping[str, Any]], Json | None], tell: Callable[[Json], None]) -> None:
        self._read = read
        self._tell = tell
        self._line: list[bytes] = []  # what has come of it

    async def add(self, part: bytes, *, most_values: int) -> None:
        """Send on the pieces whose events have ended."""
        ended, newline, begun = part.rpartition(b"\n")
        if not newline:
            self._line.append(part)
            return
        lines = b"".join((*self._line, ended))
        self._line = [begun]
        check_number_of_values(lines, most_values)
        for event in await parse(_all_events, lines):
            if (piece := self._read(event)) is not None:
                self._tell(piece)


def _all_events(body: bytes) -> list[Mapping[str, Any]]:
    return list(events_in(body))

"""Answers that an upstream sends as a stream of events, read as if they had come whole.

A candidate is scored when it is finished, so nothing is gained by reading its pieces one by one.
What is gained is that an upstream that writes for ten minutes is not silent: the limit is then the
longest silence between two pieces, not the time that a whole answer takes.
"""

import json
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any, Final

import httpx

from qguide.qnet.policies.answer_parsing import parse
from qguide.qnet.policies.dialects.base import Completion, Dialect, Refusal, loaded, read_refusal

EVENTS: Final = "text/event-stream"
_DATA: Final = b"data:"
_DONE: Final = b"[DONE]"


def is_stream(response: httpx.Response) -> bool:
    """True if the answer is a stream of events."""
    return str(response.headers.get("content-type", "")).startswith(EVENTS)


async def read_stream(dialect: Dialect, body: bytes) -> Completion | Refusal:
    """Read a stream that has arrived; never raises.

    A stream that broke off, and one that is none of the dialect, is a completion without
    candidates.
    """
    return await parse(partial(_read, dialect), body)


def _read(dialect: Dialect, body: bytes) -> Completion | Refusal:
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

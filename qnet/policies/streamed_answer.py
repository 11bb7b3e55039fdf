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
    for said in events:
        if said.get("error") and said.get("type") in (None, "error"):
            return read_refusal(json.dumps(said).encode())
    whole = dialect.assembled(events)
    if whole is None:
        return Completion(is_object=bool(events))
    return dialect.read_answer(json.dumps(whole).encode())


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

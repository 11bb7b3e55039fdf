"""A history to draw for, and a policy whose upstream gives one answer that a test writes."""

import asyncio
from collections.abc import AsyncIterator, Iterable, Mapping
from dataclasses import replace
from typing import Any

import httpx

from qguide.qnet.policies.openai_compatible import OpenAICompatiblePolicy
from qguide.qnet.policies.upstream_settings import UpstreamLimits
from qguide.qnet.types import Candidate, History, Message

HISTORY: History = (Message("system", "be brief"), Message("user", "find the mug"))


MIB = 1024**2


QUICK = UpstreamLimits(timeout_s=20.0, retries=1, longest_wait_s=2.0, breaker_failures=2)
SHORT = replace(QUICK, timeout_s=0.2)
"""For an upstream that never answers; of one that does, a busy machine makes one that does not."""


TOOL: dict[str, Any] = {
    "type": "function",
    "function": {"name": "go", "parameters": {"type": "object", "properties": {"to": {"enum": ["desk", "shelf"]}}}},
}


def said(candidates: list[Candidate]) -> list[str]:
    return [candidate.message.content for candidate in candidates]


class Body(httpx.AsyncByteStream):
    """An answer's body, in the pieces in which it arrives."""

    def __init__(self, pieces: Iterable[bytes]) -> None:
        self.pieces = iter(pieces)
        self.sent = 0

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for piece in self.pieces:
            self.sent += len(piece)
            await asyncio.sleep(0)
            yield piece


def answering(body: Body, headers: Mapping[str, str] | None = None, *, status: int = 200) -> OpenAICompatiblePolicy:
    """A policy whose upstream gives this answer, once."""
    raw = [(name.encode(), value.encode()) for name, value in (headers or {}).items()]
    answer = httpx.Response(status, headers=raw, stream=body)
    transport = httpx.MockTransport(lambda _: answer)
    limits = UpstreamLimits(max_answer_bytes=MIB, retries=0, breaker_failures=1)
    return OpenAICompatiblePolicy("demo", url="http://demo/v1", model="m", limits=limits, transport=transport)

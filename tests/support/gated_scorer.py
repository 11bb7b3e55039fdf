"""A scorer that waits for its gate, and what tests of faults ask of its server."""

import asyncio
import threading
from collections.abc import Sequence
from typing import Any

from qguide.qnet.scoring.scripted import ScriptedScorer
from qguide.qnet.types import ScoreRequest, ScoreResult

END_S = 60.0


USER = {"role": "user", "content": "look"}


SCORE = {"messages": [USER], "candidates": ["go", "stay"]}


CHAT = "/v1/chat/completions"


def say(text: str) -> dict[str, Any]:
    return SCORE | {"messages": [{"role": "user", "content": text}]}


def stream_of(text: str) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": text}], "stream": True}


class GatedScorer(ScriptedScorer):
    """Scores while its gate is open, records what it was asked, and dies when asked to "die"."""

    def __init__(self) -> None:
        super().__init__({})
        self.gate = threading.Event()
        self.entered = threading.Event()
        self.asked: list[str] = []
        self.batches: list[int] = []

    def score(self, requests: Sequence[ScoreRequest]) -> list[ScoreResult]:
        """Wait for the gate, then score or die."""
        self.asked += [request.history[-1].content for request in requests]
        self.batches.append(len(requests))
        self.entered.set()
        assert self.gate.wait(END_S)
        if any(text == "die" for text in self.asked):
            raise Death
        return super().score(requests)


class Death(BaseException):
    """An exception that no worker survives."""


async def entered(scorer: GatedScorer) -> None:
    assert await asyncio.to_thread(scorer.entered.wait, END_S)

"""A policy that draws any of its actions, for jobs that explore the corridor."""

from collections.abc import Sequence
from random import Random

from qguide.qnet.types import Candidate, Message, SampleRequest
from qguide.training.trajectory import react_reply

ACTIONS = ("go left", "go right", "take key", "open door")


class Wanderer:
    """Draws any action with any of its thoughts, decided only by the request's seed."""

    name = "wanderer"

    def __init__(self, thoughts: Sequence[str] = ("",), *, dies_after: int | None = None) -> None:
        """`dies_after`: the number of calls after which one is interrupted as by Ctrl-C."""
        self.calls = 0
        self._thoughts = thoughts
        self._dies_after = dies_after

    def sample_batch(self, requests: Sequence[SampleRequest]) -> list[list[Candidate]]:
        self.calls += 1
        if self.calls == self._dies_after:
            raise KeyboardInterrupt
        return [self._sample(request) for request in requests]

    def _sample(self, request: SampleRequest) -> list[Candidate]:
        draw = Random(request.sampling.seed)
        return [self._candidate(draw) for _ in range(request.n)]

    def _candidate(self, draw: Random) -> Candidate:
        reply = react_reply(draw.choice(self._thoughts), draw.choice(ACTIONS))
        return Candidate(Message("assistant", reply), completion_tokens=3, logprob=-1.0)

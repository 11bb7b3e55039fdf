"""A policy for the lamps of `own_environments`."""

from collections.abc import Sequence
from random import Random

from qguide.qnet.types import Candidate, SampleRequest
from qguide.training.trajectory import react_reply, text_reply


class Presser:
    """A policy that looks, or presses one of the switches."""

    name = "presser"

    def sample_batch(self, requests: Sequence[SampleRequest]) -> list[list[Candidate]]:
        actions = ["look", "press 1", "press 2", "press 3"]
        drawn = []
        for request in requests:
            rng = Random(request.sampling.seed)
            replies = [react_reply("", rng.choice(actions)) for _ in range(request.n)]
            drawn.append([Candidate(text_reply(reply), 1) for reply in replies])
        return drawn

"""The expert as a policy, so that trees can be explored with its mistakes."""

from collections.abc import Sequence
from random import Random

from cachetools import LRUCache

from qnet.types import Candidate, Message, SampleRequest
from training.environments.alfworld.expert.expert import Expert

MISREADINGS = 0.6
"""Share of misreadings. A Q model that has seen few believes "it is here", and argmax finds it."""

MOST_EXPERTS = 8192
"""Most histories whose expert is kept for the next step, a few kilobytes each."""

Texts = tuple[str, ...]
"""A history's observations and replies in turn."""


class ExpertPolicy:
    """The expert's reply at temperature 0; at any other temperature a mistake in its place.

    A tree with drawn branches and greedy roll-outs measures the cost of each mistake to an agent
    that recovers from it. It grows hundreds of trees a minute, because no model is asked.
    """

    name = "expert"

    def __init__(self) -> None:
        """Start without histories."""
        self._experts = LRUCache[Texts, tuple[Expert, str]](MOST_EXPERTS)

    def sample_batch(self, requests: Sequence[SampleRequest]) -> list[list[Candidate]]:
        """Candidates of each request, which depend on its history and its seed alone."""
        return [self._draw(request) for request in requests]

    def _draw(self, request: SampleRequest) -> list[Candidate]:
        expert, wanted = self._after(tuple(message.content for message in request.history))
        if request.sampling.temperature == 0:
            replies = [wanted] * request.n
        else:
            rng, erring = Random(request.sampling.seed), expert.copy()
            replies = [erring.deviate(rng, misreadings=MISREADINGS) for _ in range(request.n)]
        return [Candidate(Message("assistant", reply), completion_tokens=0) for reply in replies]

    def _after(self, texts: Texts) -> tuple[Expert, str]:
        """An expert that has followed the history, and its reply; callers must copy it."""
        known = len(texts)
        while known > 0 and texts[:known] not in self._experts:
            known -= 2
        if known <= 0:
            known = 1
            expert = Expert(forgetful=True)
            self._keep(texts[:known], expert, expert.reply(texts[0]))
        expert, wanted = self._experts[texts[:known]]
        if known < len(texts):
            expert = expert.copy()
            for reply, observation in zip(texts[known::2], texts[known + 1 :: 2], strict=True):
                expert.follow(reply)
                wanted = expert.reply(observation)
            self._keep(texts, expert, wanted)
        return expert, wanted

    def _keep(self, texts: Texts, expert: Expert, wanted: str) -> None:
        self._experts[texts] = expert, wanted

"""The expert as a policy, so that its own mistakes can be explored like a model's."""

from collections.abc import Sequence
from random import Random

from cachetools import LRUCache

from qnet.types import Candidate, Message, SampleRequest
from training.environments.alfworld.expert.expert import Expert

MISREADINGS = 0.6
"""A Q model that has hardly seen any takes "it is here" at its word, and argmax finds it."""

MOST_EXPERTS = 8192
"""Histories whose expert is kept for the next step, a few kilobytes each."""

Texts = tuple[str, ...]
"""A history's observations and replies in turn."""


class ExpertPolicy:
    """At temperature 0 the expert's reply, at any other a mistake in its place.

    A tree explored with it, siblings hot and roll-outs greedy, says what each mistake costs an
    agent that recovers from it: hundreds of trees a minute, because no model is asked.
    """

    name = "expert"

    def __init__(self) -> None:
        """Know no history yet."""
        self._experts = LRUCache[Texts, tuple[Expert, str]](MOST_EXPERTS)

    def sample_batch(self, requests: Sequence[SampleRequest]) -> list[list[Candidate]]:
        """Candidates of each request, a function of its history and its seed."""
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
        """An expert that has followed the history, and its reply; not to be changed."""
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

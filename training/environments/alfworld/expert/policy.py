"""The expert as a policy, for exploration of trees from its mistakes."""

from collections.abc import Sequence
from random import Random

from cachetools import LRUCache

from qguide.qnet.types import Candidate, Message, SampleRequest
from qguide.training.environments.alfworld.expert.expert import AlfWorldExpert

MISREADINGS = 0.6
"""Share of misreadings among the mistakes. A Q model that has seen few of them believes a false "it
is here", and the argmax then picks that reply."""

MOST_EXPERTS = 8192
"""Number of histories whose expert is kept for the next step, at a few kilobytes each."""

Texts = tuple[str, ...]
"""A history's alternating observations and replies."""


class ExpertPolicy:
    """The expert's reply at temperature 0; at any other temperature, a mistake instead.

    A tree with drawn branches and greedy roll-outs measures the cost of each mistake to an agent
    that recovers from it. Hundreds of trees grow per minute, because no model is asked.
    """

    name = "expert"

    def __init__(self) -> None:
        self._experts: LRUCache[Texts, tuple[AlfWorldExpert, str]] = LRUCache(MOST_EXPERTS)

    def sample_batch(self, requests: Sequence[SampleRequest]) -> list[list[Candidate]]:
        """Candidates of each request, which depend only on its history and seed."""
        return [self._draw(request) for request in requests]

    def _draw(self, request: SampleRequest) -> list[Candidate]:
        expert, wanted = self._after(tuple(message.content for message in request.history))
        if request.sampling.temperature == 0:
            replies = [wanted] * request.n
        else:
            rng, erring = Random(request.sampling.seed), expert.copy()
            replies = [erring.deviate(rng, misreadings=MISREADINGS) for _ in range(request.n)]
        return [Candidate(Message("assistant", reply), completion_tokens=0) for reply in replies]

    def _after(self, texts: Texts) -> tuple[AlfWorldExpert, str]:
        """An expert that has followed the history, and its reply; callers must copy the expert."""
        for known in range(len(texts), 0, -2):
            if (found := self._experts.get(texts[:known])) is not None:
                expert, wanted = found
                break
        else:
            known = 1
            expert = AlfWorldExpert(forgetful=True)
            wanted = expert.reply(texts[0])
            self._experts[texts[:known]] = expert, wanted
        if known < len(texts):
            expert = expert.copy()
            for reply, observation in zip(texts[known::2], texts[known + 1 :: 2], strict=True):
                expert.follow(reply)
                wanted = expert.reply(observation)
            self._experts[texts] = expert, wanted
        return expert, wanted

"""The expert as a policy, so that its own mistakes can be explored like a model's."""

from collections.abc import Sequence
from random import Random

from qnet.types import Candidate, History, Message, SampleRequest
from training.environments.alfworld.expert import Expert

MISREADINGS = 0.6
"""A Q model that has hardly seen any takes "it is here" at its word, and argmax finds it."""


class ExpertPolicy:
    """At temperature 0 the expert's reply, at any other a mistake in its place.

    A tree explored with it, siblings hot and roll-outs greedy, says what each mistake costs an
    agent that recovers from it: thousands of trees a minute, because no model is asked.
    """

    name = "expert"

    def sample_batch(self, requests: Sequence[SampleRequest]) -> list[list[Candidate]]:
        """Candidates of each request, a function of its history and its seed."""
        return [_draw(request) for request in requests]


def _draw(request: SampleRequest) -> list[Candidate]:
    expert, wanted = _expert_after(request.history)
    if request.sampling.temperature == 0:
        replies = [wanted] * request.n
    else:
        rng = Random(request.sampling.seed)
        replies = [expert.deviate(rng, misreadings=MISREADINGS) for _ in range(request.n)]
    return [Candidate(Message("assistant", reply), completion_tokens=0) for reply in replies]


def _expert_after(history: History) -> tuple[Expert, str]:
    """An expert that has followed the history, and what it would say next."""
    expert = Expert(forgetful=True)
    for observation, action in zip(history[::2], history[1::2], strict=False):
        expert.reply(observation.content)
        expert.follow(action.content)
    return expert, expert.reply(history[-1].content)

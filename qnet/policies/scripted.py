"""Policies without a model, for demos and tests: fixed replies in turn."""

from collections.abc import Sequence

from qguide.qnet.types import Candidate, History, Message, SampleRequest, Sampling

DEFAULT_REPLIES = (
    "Thought: I should look around first.\nAction: look",
    "Thought: I should check what I carry.\nAction: inventory",
    "Thought: The desk is a good place to start.\nAction: go to desk 1",
)

_FRAMES = ("In other words: {}", "What is to be done: {}", "Please see to this: {}")


class ScriptedPolicy:
    """Candidate k of turn t is reply t + k of the script, modulo its length."""

    def __init__(self, replies: Sequence[str] = DEFAULT_REPLIES, *, name: str = "scripted") -> None:
        self.name = name
        self._replies = tuple(replies)

    async def sample(self, history: History, *, n: int, sampling: Sampling) -> list[Candidate]:
        """The next `n` replies of the script."""
        return self._draw(history, n)

    def sample_batch(self, requests: Sequence[SampleRequest]) -> list[list[Candidate]]:
        """The next replies of the script for each request."""
        return [self._draw(request.history, request.n) for request in requests]

    def _draw(self, history: History, n: int) -> list[Candidate]:
        turn = sum(message.role == "assistant" for message in history)
        replies = [self._replies[(turn + k) % len(self._replies)] for k in range(n)]
        words = sum(len(message.text.split()) for message in history)
        return [
            Candidate(Message("assistant", reply), completion_tokens=len(reply.split()), prompt_tokens=words)
            for reply in replies
        ]


class ScriptedParaphraser:
    """Policy without a model that puts the text to be paraphrased into a fixed frame."""

    name = "scripted"

    async def sample(self, history: History, *, n: int, sampling: Sampling) -> list[Candidate]:
        """The text after the first colon of the last message, in `n` frames."""
        text = history[-1].content.partition(":")[2].strip()
        said = [_FRAMES[k % len(_FRAMES)].format(text) for k in range(n)]
        return [Candidate(Message("assistant", reply), completion_tokens=len(reply.split())) for reply in said]

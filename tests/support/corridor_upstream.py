"""A fake upstream that plays corridors, and a policy in this process with the same replies."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

from qguide.qnet.types import Candidate, Message, SampleRequest
from qguide.server.chat.fake_openai import FakeUpstream
from qguide.training.rollouts.hosted import HostedModel
from qguide.training.trajectory import react_reply
from tests.support.serving import serving_app

MODEL = "corridor-1"
REPLIES = tuple(
    react_reply("", action)
    for action in ("go left", "take key", "go right", "open door", "go right", "go left", "look")
)


class SameReplies:
    """The fake upstream's replies, from a policy that answers in batches."""

    name = MODEL

    def sample_batch(self, requests: Sequence[SampleRequest]) -> list[list[Candidate]]:
        return [self._draw(request) for request in requests]

    def _draw(self, request: SampleRequest) -> list[Candidate]:
        turn = sum(message.role == "assistant" for message in request.history)
        first = turn + (request.sampling.seed or 0)
        replies = [REPLIES[(first + k) % len(REPLIES)] for k in range(request.n)]
        words = [len(reply.split()) for reply in replies]
        shares = [(sum(words) + k) // len(words) for k in range(len(words))]
        return [Candidate(Message("assistant", reply), share) for reply, share in zip(replies, shares, strict=True)]


@contextmanager
def serving_corridors(fake: FakeUpstream) -> Iterator[str]:
    """The base URL of the fake, which plays corridors."""
    fake.replies = REPLIES
    with serving_app(fake.app()) as url:
        yield f"{url}/v1"


def hosted(url: str, **changes: object) -> Mapping[str, HostedModel]:
    """The `[upstreams]` table of a job file with one upstream, "demo"."""
    values: dict[str, object] = {"url": url, "model": MODEL, "patience_s": 20.0}
    return {"demo": HostedModel.model_validate(values | changes)}

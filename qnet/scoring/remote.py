"""Base of the scorers that send every distinct sequence of a batch to a server, as token ids."""

from abc import ABC, abstractmethod
from collections.abc import Sequence

from qguide.qnet.scoring.rendered_requests import (
    ConversationRenderer,
    RenderedRequest,
    RequestRenderer,
)
from qguide.qnet.scoring.vllm_client import PoolingServer
from qguide.qnet.sliced_scorer import CachingScorer
from qguide.qnet.types import ScoreRequest, ScoreResult, Slices
from qguide.qnet.usage import TokenUsage


class RemoteScorer(CachingScorer, ABC):
    """One request to a server for each batch and cache salt."""

    context: int

    def __init__(
        self, requests: RequestRenderer | ConversationRenderer, server: PoolingServer
    ) -> None:
        self.name = requests.name
        self.context = requests.context
        self.reads_observation = requests.reads_observation
        self._requests = requests
        self._connection = server

    def prepare(self, request: ScoreRequest) -> RenderedRequest:
        """The request's tokens."""
        return self._requests.prepare(request)

    def slices(self, prepared: Sequence[RenderedRequest]) -> Slices[list[ScoreResult]]:
        """The results of `score`, in one slice: the server cannot be asked to stop."""
        if not prepared:
            return []
        yield {i: TokenUsage(tokens_of(request), 0) for i, request in enumerate(prepared)}
        return self._score(prepared)

    def _score(self, rendered: Sequence[RenderedRequest]) -> list[ScoreResult]:
        results: dict[int, ScoreResult] = {}
        # One salt to a request of vLLM's; and a share of what others' prompts had cached would
        # tell about those prompts.
        for salt in dict.fromkeys(request.cache_salt for request in rendered):
            mine = [i for i, request in enumerate(rendered) if request.cache_salt == salt]
            results.update(
                zip(mine, self._score_salted([rendered[i] for i in mine], salt), strict=True)
            )
        return [results[i] for i in range(len(rendered))]

    @abstractmethod
    def _score_salted(self, requests: Sequence[RenderedRequest], salt: str) -> list[ScoreResult]:
        """The results of requests with one cache salt."""

    def close(self) -> None:
        """Let go of the connections to the server."""
        self._connection.close()


def tokens_of(request: RenderedRequest) -> int:
    """Number of tokens that a request costs without a cache."""
    return sum(len(request.history) + len(c) for c in request.candidates)


def results_of(
    requests: Sequence[RenderedRequest],
    q_values: Sequence[float],
    tokens: Sequence[int],
    cached: Sequence[int],
) -> list[ScoreResult]:
    """Result of each request.

    Args:
        q_values: of all requests' distinct candidates, one after the other.
        tokens: sent for each request.
        cached: how many of these the server had.
    """
    results = []
    start = 0
    for request, mine, known in zip(requests, tokens, cached, strict=True):
        q_of_each = tuple(q_values[start + i] for i in request.index)
        start += len(request.candidates)
        results.append(ScoreResult(q_of_each, mine - known, known))
    return results

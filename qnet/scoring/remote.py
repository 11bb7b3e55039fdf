"""Base of the scorers that send every distinct sequence of a batch to a server, as token ids."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import ClassVar, TypeVar

from qguide.qnet.errors import ConfigError, ScorerUnavailableError
from qguide.qnet.scoring.rendered_requests import (
    ConversationRenderer,
    RenderedRequest,
    RenderingScorer,
    RequestRenderer,
)
from qguide.qnet.scoring.vllm_client import PoolingServer
from qguide.qnet.sliced_scorer import Slices
from qguide.qnet.types import ScoreResult
from qguide.qnet.work import TokenUsage

Checked = TypeVar("Checked")


class RemoteScorer(RenderingScorer, ABC):
    """One request to a server for each batch and cache salt."""

    kind: ClassVar[str] = "the server"

    def __init__(self, requests: RequestRenderer | ConversationRenderer, server: PoolingServer) -> None:
        super().__init__(requests)
        self._connection = server

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
            results.update(zip(mine, self._score_salted([rendered[i] for i in mine], salt), strict=True))
        return [results[i] for i in range(len(rendered))]

    def _connected(self, check: Callable[[], Checked]) -> Checked:
        """The result of a check of the server; one that fails closes the connections, and refuses the server."""
        try:
            return check()
        except BaseException as error:
            self.close()
            if isinstance(error, ScorerUnavailableError):
                raise self._refusal(str(error)) from error
            raise

    def _require_context(self, *, unserved: str, shorter: str) -> None:
        """Refuse a server without the model, or with a shorter context; each with its remedy."""
        contexts, wanted = self._connection.served_contexts(), self._connection.model
        if wanted not in contexts:
            known = ", ".join(sorted(contexts)) or "nothing"
            raise self._refusal(f"it serves {known} and not {wanted}; {unserved}")
        served = contexts[wanted]
        if served is not None and served < self.context:
            raise self._refusal(
                f"it takes {served:,} tokens where {self.name} takes {self.context:,}; {shorter}, "
                f"or set max_tokens to {served}"
            )

    def _refusal(self, reason: str) -> ConfigError:
        return ConfigError(f"{self.name} cannot use {self.kind} at {self._connection.url}: {reason}")

    @abstractmethod
    def _score_salted(self, requests: Sequence[RenderedRequest], salt: str) -> list[ScoreResult]:
        """The results of requests with one cache salt."""

    def close(self) -> None:
        """Let go of the connections to the server."""
        self._connection.close()


def tokens_of(request: RenderedRequest) -> int:
    """Number of tokens that a request costs without a cache."""
    return sum(len(request.history) + len(c) for c in request.candidates)

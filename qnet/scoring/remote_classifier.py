"""Q(s, a) as the logit of a sequence classifier with one label on a server with vLLM's /classify.

The server is, for example, `vllm serve MODEL --runner pooling`. Every distinct conversation of a
batch goes to it in one request, as token ids; the logits come back without their sigmoid.
"""

from collections.abc import Sequence
from contextlib import ExitStack
from math import isfinite, nan

from qnet.errors import ConfigError, ScorerUnavailableError
from qnet.models.remote_classifier import RemoteClassifier
from qnet.scoring.conversations import ConversationRenderer
from qnet.scoring.remote import RemoteScorer, results_of, tokens_of
from qnet.scoring.rendered_requests import RenderedRequest, RequestRenderer
from qnet.scoring.vllm_client import ClassifyServer
from qnet.types import ScoreResult

_PROBE_TOKENS = 8


class RemoteClassifyScorer(RemoteScorer):
    """One request to the server for each batch. It does not say what it had cached.

    Args:
        loaded: the classifier without its weights.
        server: closed with the scorer, and where it is refused.
        max_tokens: longest conversation; None takes all that the classifier can.

    Raises:
        ConfigError: the server cannot be reached, serves another model or too short a context, or
            does not answer a prompt with one finite number.
    """

    def __init__(
        self, loaded: RemoteClassifier, server: ClassifyServer, *, max_tokens: int | None = None
    ) -> None:
        context = min(loaded.context, max_tokens or loaded.context)
        super().__init__(_request_renderer(loaded, context), server)
        self._server = server
        with ExitStack() as refused:
            refused.callback(self.close)
            self._require_a_classifier(loaded)
            refused.pop_all()

    def _score_salted(self, requests: Sequence[RenderedRequest], salt: str) -> list[ScoreResult]:
        sequences = [request.history + c for request in requests for c in request.candidates]
        logits = self._server.logits(sequences, cache_salt=salt)
        q_values = [logit if isfinite(logit) else nan for logit in logits]
        return results_of(requests, q_values, list(map(tokens_of, requests)), [0] * len(requests))

    def _require_a_classifier(self, loaded: RemoteClassifier) -> None:
        try:
            self._require_context(self._server.served_contexts())
            probe = [(7 * i + 1) % loaded.vocab_size for i in range(_PROBE_TOKENS)]
            [q_value] = self._server.logits([probe])
        except ScorerUnavailableError as error:
            raise self._refusal(str(error)) from error
        if not isfinite(q_value):
            raise self._refusal("the Q of an ordinary prompt is not finite; look at its --dtype")

    def _require_context(self, contexts: dict[str, int | None]) -> None:
        wanted = self._server.model
        if wanted not in contexts:
            raise self._refusal(
                f"it serves {', '.join(sorted(contexts)) or 'nothing'} and not {wanted}; set model "
                "to the name that it serves the classifier under"
            )
        served = contexts[wanted]
        if served is not None and served < self.context:
            raise self._refusal(
                f"it takes {served:,} tokens where {self.name} takes {self.context:,}; start it "
                f"with a longer context, or set max_tokens to {served}"
            )

    def _refusal(self, reason: str) -> ConfigError:
        return ConfigError(f"{self.name} cannot use the server at {self._server.url}: {reason}")


def _request_renderer(
    loaded: RemoteClassifier, context: int
) -> RequestRenderer | ConversationRenderer:
    if loaded.conversations:
        pad_token_id = loaded.conversations.pad_token_id
        return ConversationRenderer(loaded.renderer, loaded.name, context, pad_token_id)
    return RequestRenderer(loaded.renderer, loaded.name, context, loaded.manifest.reads_observation)

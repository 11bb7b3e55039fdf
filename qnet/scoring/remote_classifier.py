"""Q(s, a) as the logit of a sequence classifier with one label on a server with vLLM's /classify.

The server is, for example, `vllm serve MODEL --runner pooling`. Every distinct conversation of a
batch goes to it in one request, as token ids; the logits come back without their sigmoid.
"""

from collections.abc import Sequence
from functools import partial
from math import isclose, isfinite, nan
from typing import Final

from qguide.qnet.models.classifier import RemoteClassifier
from qguide.qnet.scoring.remote import RemoteScorer, tokens_of
from qguide.qnet.scoring.rendered_requests import RenderedRequest, request_renderer, results_of
from qguide.qnet.scoring.vllm_client import ClassifyServer
from qguide.qnet.types import ScoreResult

_PROBE_TOKENS: Final = (4, 8)  # lengths of the prompts that a server has to answer when it is connected
_SAME: Final = 1e-3  # difference of two answers to one prompt that lower precision explains


class RemoteClassifyScorer(RemoteScorer):
    """One request for each batch to a server, which does not say what it had cached, and is closed with the scorer."""

    def __init__(self, loaded: RemoteClassifier, server: ClassifyServer, *, max_tokens: int | None = None) -> None:
        context = min(loaded.context, max_tokens or loaded.context)
        super().__init__(request_renderer(loaded, context), server)
        self._server = server
        self._connected(partial(self._require_a_classifier, loaded))

    def _score_salted(self, requests: Sequence[RenderedRequest], salt: str) -> list[ScoreResult]:
        sequences = [request.history + c for request in requests for c in request.candidates]
        logits = self._server.logits(sequences, cache_salt=salt)
        q_values = [logit if isfinite(logit) else nan for logit in logits]
        return results_of(requests, q_values, list(map(tokens_of, requests)), [0] * len(requests))

    def _require_a_classifier(self, loaded: RemoteClassifier) -> None:
        self._require_context(
            unserved="set model to the name that it serves the classifier under",
            shorter="start it with a longer context",
        )
        probes = [[(7 * i + 1) % loaded.vocab_size for i in range(n)] for n in _PROBE_TOKENS]
        logits = self._server.logits(probes)
        activations = self._server.activations(probes)
        if not all(map(isfinite, logits)):
            raise self._refusal("the Q of an ordinary prompt is not finite; look at its --dtype")
        if not loaded.is_regression and _may_be_activated(logits, activations):
            raise self._refusal(
                "it answers the same from 0 to 1 with use_activation true and false, so it gives "
                "sigmoids where Q is the logit; serve the classifier by a server that knows the "
                'field use_activation of /classify, or with "problem_type": "regression" in its '
                "config.json, here and there, which tells vLLM that there is no activation"
            )


def _may_be_activated(logits: Sequence[float], activations: Sequence[float]) -> bool:
    """True if asking for logits changes nothing and all of them could be probabilities.

    A server that ignores the wish gives sigmoids both times. One that has no activation at all
    gives logits both times, and these leave the range from 0 to 1.
    """
    same = all(
        isclose(logit, activation, rel_tol=_SAME, abs_tol=_SAME)
        for logit, activation in zip(logits, activations, strict=True)
    )
    return same and all(0 <= logit <= 1 for logit in logits)

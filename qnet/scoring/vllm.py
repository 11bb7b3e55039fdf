"""Q(s, a) with the trunk on a vLLM server and the value head here, for trunks of several GPUs.

Every distinct sequence of a batch goes to the server in one request, as token ids. The server's prefix cache is what
keeps this from costing as much as the naive scorer, so a server whose cache is off is refused at start.

The trunk is a folder written by `qguide export-trunk`, served by

    vllm serve FOLDER --served-model-name NAME --runner pooling --convert embed
        --pooler-config '{"pooling_type": "LAST", "use_activation": false}'
        --enable-prefix-caching --dtype bfloat16
"""

from collections.abc import Sequence
from itertools import accumulate, pairwise
from math import isfinite
from typing import Final

import numpy as np
from numpy.typing import NDArray

from qguide.qnet.engine.context_length import context_length
from qguide.qnet.errors import ScorerUnavailableError
from qguide.qnet.models.match_features import MATCH_FEATURES
from qguide.qnet.models.remote_trunk import RemoteTrunk
from qguide.qnet.scoring.remote import RemoteScorer, tokens_of
from qguide.qnet.scoring.rendered_requests import RenderedRequest, RequestRenderer, head_features, results_of
from qguide.qnet.scoring.vllm_client import CacheCounters, VllmServer
from qguide.qnet.types import ScoreResult

PROBE_TOKENS = 1024
"""More than a few blocks of any size that vLLM chooses by itself for full attention."""
_ROUNDED: Final = 0.1
"""Most that bfloat16 may change Q; states of recurrent layers that vLLM had mixed up changed it by more."""


class VllmScorer(RemoteScorer):
    """One request to vLLM for each batch; the value head in float32 on what it answers. The server is closed with it.

    vLLM counts cached tokens for the whole server, not for a prompt. So the requests of a batch with one cache salt get
    shares of the count in proportion to their tokens. Where others use the same server, the count is a lower bound.

    Args:
        max_tokens: longest sequence; None takes all that the trunk can.
    """

    kind = "the vLLM"

    def __init__(self, loaded: RemoteTrunk, server: VllmServer, *, max_tokens: int | None = None) -> None:
        longest = context_length(loaded.trunk)
        requests = RequestRenderer(
            loaded.renderer,
            loaded.name,
            min(longest, max_tokens or longest),
            loaded.manifest.reads_observation,
            loaded.head.features,
        )
        super().__init__(requests, server)
        self._loaded = loaded
        self._server = server
        self._seen: CacheCounters | None = self._connected(self._require_a_server_that_will_do)

    def _score_salted(self, requests: Sequence[RenderedRequest], salt: str) -> list[ScoreResult]:
        sequences = [request.history + c for request in requests for c in request.candidates]
        features_BF = head_features(requests)
        q_values = self._q_values(sequences, features_BF, cache_salt=salt)
        tokens = list(map(tokens_of, requests))
        cached = share(self._cached_tokens(sum(tokens)), tokens)
        return results_of(requests, q_values, [own - hit for own, hit in zip(tokens, cached, strict=True)], cached)

    def _q_values(
        self, sequences: Sequence[list[int]], features_BF: NDArray[np.float32] | None, *, cache_salt: str = ""
    ) -> list[float]:
        hidden_BD = self._server.hidden_states(sequences, cache_salt=cache_salt)
        q_B = self._loaded.head(hidden_BD, features_BF)
        q_B[~np.isfinite(hidden_BD).all(-1)] = np.nan
        return [float(q) for q in q_B]

    def _cached_tokens(self, tokens: int) -> int:
        """Number of the tokens just sent that were cached; 0 if the counters cannot be read."""
        before = self._seen
        try:
            self._seen = self._server.cache_counters()
        except ScorerUnavailableError:
            self._seen = None  # Q is known, and that is what was asked for
        if before is None or self._seen is None:
            return 0
        return self._seen.hits_of(tokens, since=before)

    def _require_a_server_that_will_do(self) -> CacheCounters:
        self._require_context(
            unserved="write the trunk with qguide export-trunk and start vLLM on it with "
            f"--served-model-name {self._server.model}",
            shorter=f"start vLLM with --max-model-len {self.context}",
        )
        return self._require_cache()

    def _require_cache(self) -> CacheCounters:
        """Send the same prompt twice; the second time some of it has to be cached, and Q be the same."""
        probe = [self._probe()]
        features_BF = np.zeros((1, len(MATCH_FEATURES)), np.float32)
        [computed] = self._q_values(probe, features_BF)
        if not isfinite(computed):
            raise self._refusal("the Q of an ordinary prompt is not finite; look at its --dtype")
        before = self._counters()
        [cached] = self._q_values(probe, features_BF)
        after = self._counters()
        if not after.hits_of(len(probe[0]), since=before):
            raise self._refusal(
                f"it found none of {len(probe[0]):,} tokens that it had just computed, so every "
                "candidate would cost its whole history; start vLLM with --enable-prefix-caching, "
                f"LAST pooling and a --block-size well below {len(probe[0]):,}"
            )
        if not abs(cached - computed) <= _ROUNDED:  # nor is a Q that is not finite
            raise self._refusal(
                f"the Q of a prompt is {computed:.3f}, and {cached:.3f} once it is cached, where {_ROUNDED:g} is "
                "allowed for rounding; start vLLM without --prefix-match-unit, or run the trunk in QGuide"
            )
        return after

    def _counters(self) -> CacheCounters:
        counters = self._server.cache_counters()
        if counters is None:
            raise self._refusal(
                "its /metrics has no vllm:prefix_cache_queries and vllm:prefix_cache_hits, so "
                "cached tokens cannot be told; start vLLM without --disable-log-stats"
            )
        return counters

    def _probe(self) -> list[int]:
        vocab_size = int(self._loaded.trunk.vocab_size)
        return [(7 * i + 1) % vocab_size for i in range(min(PROBE_TOKENS, self.context))]


def share(total: int, weights: Sequence[int]) -> list[int]:
    """Whole shares of `total` in proportion to `weights`, which add up to it."""
    whole = sum(weights)
    ends = [round(total * end / whole) for end in accumulate(weights, initial=0)]
    return [end - start for start, end in pairwise(ends)]

"""Q(s, a) at the candidates' last tokens: the plain reference and the fast scorer.

A Q model that reads after the observation reads at the last token of what followed the candidate.
`NaiveScorer` runs every full sequence alone. `SharedPrefixScorer` must equal it within float
tolerance and computes only what is new: the history's unknown tokens once, then the candidates'
distinct tokens side by side, each seeing the history and its own beginning.
"""

from collections import Counter
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from qguide.qnet.engine.attention import PackedSegment
from qguide.qnet.engine.context_length import context_length
from qguide.qnet.engine.forward_passes import metered
from qguide.qnet.engine.packed_model import (
    DEFAULT_CACHE_BYTES,
    DEFAULT_TOKENS_PER_FORWARD,
    PackedModel,
    hidden_states_of,
)
from qguide.qnet.engine.prefix_cache import Entry
from qguide.qnet.models.checkpoint import LoadedQNet
from qguide.qnet.scoring.rendered_requests import (
    ConversationRenderer,
    RenderedRequest,
    RenderingScorer,
    RequestRenderer,
    head_features,
)
from qguide.qnet.scoring.score_plan import remember, segments
from qguide.qnet.types import ScoreResult, Slices


class NaiveScorer(RenderingScorer):
    """Reference scorer: every full sequence alone, nothing cached."""

    def __init__(self, loaded: LoadedQNet) -> None:
        super().__init__(request_renderer(loaded, context_length(loaded.model.trunk.config)))
        self._loaded = loaded

    def slices(self, prepared: Sequence[RenderedRequest]) -> Slices[list[ScoreResult]]:
        """The results of `score`; every candidate costs its whole sequence."""
        yield {}
        return [self.score_rendered(request) for request in prepared]

    @torch.inference_mode()
    def score_rendered(self, rendered: RenderedRequest) -> ScoreResult:
        """Q of each candidate of one request."""
        sequences = list(rendered.sequences)
        features_RF = _features_of([rendered])
        q_values = tuple(
            self._q(token_ids, None if features_RF is None else features_RF[candidate])
            for token_ids, candidate in zip(sequences, rendered.index, strict=True)
        )
        return ScoreResult(q_values, computed_tokens=sum(map(len, sequences)))

    def _q(self, token_ids: list[int], features_F: Tensor | None) -> float:
        model = self._loaded.model
        tokens_BT = torch.tensor([token_ids], device=model.device)
        hidden_BTD = model.trunk(input_ids=tokens_BT, use_cache=False).last_hidden_state
        return float(model.head(hidden_BTD[0, -1], features_F))


class SharedPrefixScorer(RenderingScorer):
    """Scores with cached histories and the candidates as one tree behind each, in one batch.

    Args:
        cache_bytes: for the histories kept between steps; with many episodes in lockstep it has
            to hold all of them, or every step starts cold.
        tokens_per_forward: longest packed row of one forward pass.
    """

    def __init__(
        self,
        loaded: LoadedQNet,
        *,
        cache_bytes: int = DEFAULT_CACHE_BYTES,
        tokens_per_forward: int = DEFAULT_TOKENS_PER_FORWARD,
    ) -> None:
        self._loaded = loaded
        self._packed = PackedModel(
            loaded.model.trunk,
            hidden_states_of(loaded.model.trunk),
            cache_bytes=cache_bytes,
            tokens_per_forward=tokens_per_forward,
        )
        super().__init__(request_renderer(loaded, self._packed.context), [self._packed])

    @torch.inference_mode()
    def slices(self, prepared: Sequence[RenderedRequest]) -> Slices[list[ScoreResult]]:
        """The results of `score`, one forward pass after the other."""
        if not prepared:
            return []
        spent = Counter[int]()
        histories = [request.salted_history for request in prepared]
        # No token of a history is computed again, because Q is read at the candidates alone.
        beginnings = self._packed.compute_beginnings(histories, spare=0)
        fresh_tokens = yield from metered(beginnings, spent)
        with self._packed.lease(histories, fresh_tokens, spare=0) as entries:
            known = [entry.cached_tokens for entry in entries]
            like = next(self._loaded.model.parameters())
            passes = self._packed.passes(_segments(prepared, entries, like))
            hidden_RD = yield from metered(passes, spent)
            features_RF = _features_of(prepared)
            q_values = self._loaded.model.head(hidden_RD, features_RF).tolist()
            for request, entry in zip(prepared, entries, strict=True):
                # Before the lease ends, which files each entry under its branches.
                remember(request, entry)
        return _results(prepared, known, q_values)


def request_renderer(loaded: LoadedQNet, context: int) -> RequestRenderer | ConversationRenderer:
    """The renderer of requests to a QNet in this process, which takes so many tokens."""
    if loaded.conversations:
        pad_token_id = loaded.conversations.pad_token_id
        return ConversationRenderer(loaded.renderer, loaded.name, context, pad_token_id)
    return RequestRenderer(
        loaded.renderer, loaded.name, context, loaded.manifest.reads_observation, loaded.model.head.features
    )


def _segments(requests: Sequence[RenderedRequest], entries: Sequence[Entry], like: Tensor) -> Iterator[PackedSegment]:
    """Each history with its candidates, read at their last tokens, which lie in their order."""
    for owner, (request, entry) in enumerate(zip(requests, entries, strict=True)):
        last = [path[-1] for path in request.paths]
        yield from segments(request, entry, read=last, like=like, owner=owner)


def _results(requests: Sequence[RenderedRequest], known: Sequence[int], q_values: Sequence[float]) -> list[ScoreResult]:
    results = []
    start = 0
    for request, cached in zip(requests, known, strict=True):
        mine = q_values[start : start + len(request.candidates)]
        start += len(request.candidates)
        q_of_each = tuple(mine[i] for i in request.index)
        results.append(ScoreResult(q_of_each, request.new_tokens(cached), cached))
    return results


def _features_of(requests: Sequence[RenderedRequest]) -> Tensor | None:
    """(R, F) of all requests' candidates; None where the value head reads none."""
    features_RF = head_features(requests)
    return None if features_RF is None else torch.from_numpy(features_RF)

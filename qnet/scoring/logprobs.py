"""Log-probabilities of candidates' tokens under a causal LM, and a scorer that is nothing more.

The implicit Q reads two models in this way; `SharedPrefixLogprobScorer` reads a policy alone, which
is the baseline for every Q model.
"""

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from math import fsum

import torch
from transformers import PreTrainedModel

from qguide.qnet.engine.kernels import upload
from qguide.qnet.engine.kv_buffer import PackedSegment
from qguide.qnet.engine.packed_model import (
    DEFAULT_CACHE_BYTES,
    DEFAULT_TOKENS_PER_FORWARD,
    PackedModel,
    Passes,
    logits_of,
)
from qguide.qnet.engine.prefix_cache import Entry
from qguide.qnet.engine.token_trie import TokenTrie
from qguide.qnet.models.checkpoint import LoadedPolicy
from qguide.qnet.scoring.rendered_requests import RenderedRequest, RenderingScorer, RequestRenderer, metered
from qguide.qnet.scoring.value_head import remember, segments
from qguide.qnet.sliced_scorer import Slices
from qguide.qnet.types import ScoreResult


@dataclass(frozen=True, slots=True)
class LogprobReading:
    """Log-probabilities of one request under one model.

    Attributes:
        logprobs: of each distinct candidate's tokens.
        known: how many of the history's tokens were cached.
    """

    logprobs: list[list[float]]
    known: int


class SharedPrefixLogprobScorer(RenderingScorer):
    """log pi(a | s) of a policy as a score: the sum over the action's tokens, its end included."""

    def __init__(self, loaded: LoadedPolicy, *, cache_bytes: int = DEFAULT_CACHE_BYTES) -> None:
        self._reader = LogprobReader(
            loaded.model, cache_bytes=cache_bytes, tokens_per_forward=DEFAULT_TOKENS_PER_FORWARD
        )
        packed = self._reader.packed
        super().__init__(RequestRenderer(loaded.renderer, loaded.name, packed.context), [packed])

    def slices(self, prepared: Sequence[RenderedRequest]) -> Slices[list[ScoreResult]]:
        """log pi of each candidate, one forward pass after the other."""
        readings = yield from metered(self._reader.read(prepared), Counter())
        return [
            ScoreResult(
                tuple(fsum(reading.logprobs[i]) for i in request.index),
                computed_tokens=request.new_tokens(reading.known),
                cached_tokens=reading.known,
            )
            for request, reading in zip(prepared, readings, strict=True)
        ]


class LogprobReader:
    """Log-probabilities of the candidates' tokens under one model, and its cache."""

    def __init__(self, model: PreTrainedModel, *, cache_bytes: int, tokens_per_forward: int) -> None:
        self._like = next(model.parameters())
        self.packed = PackedModel(
            model, logits_of(model), cache_bytes=cache_bytes, tokens_per_forward=tokens_per_forward
        )

    @torch.inference_mode()
    def read(self, requests: Sequence[RenderedRequest]) -> Passes[list[LogprobReading]]:
        """Log-probabilities of each request's distinct candidates, token by token."""
        # The first token of an action is predicted at the history's last: it is computed again.
        histories = [request.salted_history for request in requests]
        fresh_tokens = yield from self.packed.compute_beginnings(histories, spare=1)
        with self.packed.lease(histories, fresh_tokens, spare=1) as entries:
            known = [entry.cached_tokens for entry in entries]
            logprobs = iter((yield from self._logprobs(requests, entries)))
            for request, entry in zip(requests, entries, strict=True):
                remember(request, entry)
        return [
            LogprobReading(_of_each_candidate(request, logprobs), cached)
            for request, cached in zip(requests, known, strict=True)
        ]

    def _logprobs(self, requests: Sequence[RenderedRequest], entries: Sequence[Entry]) -> Passes[list[float]]:
        """Of every token of the candidates' trees, in the order of `_followers`."""
        # In the order in which the segments are read, so that rows and wanted tokens go together,
        # however the passes are cut.
        wanted = [
            [request.tree.token_ids[token] for token in following]
            for request in requests
            for following in _followers(request.tree).values()
        ]
        found: list[float] = []
        rows = 0
        for batch in self.packed.batches(_segments(requests, entries, self._like)):
            yield batch
            logits_RV = self.packed.forward(batch)
            found += _logprobs_after(logits_RV, wanted[rows : rows + len(logits_RV)])
            rows += len(logits_RV)
        return found


def _segments(
    requests: Sequence[RenderedRequest], entries: Sequence[Entry], like: torch.Tensor
) -> Iterator[PackedSegment]:
    """Each history with its candidates, read wherever a token of a candidate follows."""
    for owner, (request, entry) in enumerate(zip(requests, entries, strict=True)):
        read = list(_followers(request.tree))
        yield from segments(request, entry, read=read, like=like, owner=owner)


def _followers(tree: TokenTrie) -> dict[int, list[int]]:
    """By token of the tree, in order, the tokens that follow it; -1 is the history's last."""
    followers: dict[int, list[int]] = defaultdict(list)
    for token, before in enumerate(tree.before):
        followers[before].append(token)
    return dict(sorted(followers.items()))


def _logprobs_after(logits_RV: torch.Tensor, wanted: Sequence[Sequence[int]]) -> list[float]:
    """log pi of the tokens that are wanted of each row, one row after the other."""
    rows = [row for row, tokens in enumerate(wanted) for _ in tokens]
    tokens = [token for tokens in wanted for token in tokens]
    device = logits_RV.device
    rows_N, tokens_N = (upload(n, device, dtype=torch.long) for n in (rows, tokens))
    logits_RV = logits_RV.float()
    total_R = torch.logsumexp(logits_RV, dim=-1)
    logprobs: list[float] = (logits_RV[rows_N, tokens_N] - total_R[rows_N]).tolist()
    return logprobs


def _of_each_candidate(request: RenderedRequest, logprobs: Iterator[float]) -> list[list[float]]:
    """The next values of `logprobs`, one for each token of the tree, along each candidate."""
    in_order = chain.from_iterable(_followers(request.tree).values())
    of_token = {token: next(logprobs) for token in in_order}
    return [[of_token[token] for token in path] for path in request.paths]

"""Scorers of the implicit Q: the plain reference and the fast one.

Both read log-probabilities at the actions' tokens alone; the fast one makes vocabulary logits
nowhere else, and keeps the histories of the policy and of its reference from step to step.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from math import fsum

import torch
from transformers import PreTrainedModel

from qnet.engine.attention import PackedSegment
from qnet.engine.packed_model import (
    DEFAULT_CACHE_BYTES,
    DEFAULT_TOKENS_PER_FORWARD,
    PackedModel,
    context_length,
    logits_of,
)
from qnet.engine.prefix_cache import Entry
from qnet.engine.token_trie import TokenTree
from qnet.errors import MalformedHistoryError
from qnet.models.checkpoint import LoadedImplicitQ
from qnet.scoring.score_plan import RenderedRequest, pieces, remember, render_request
from qnet.types import CacheUse, ScoreRequest, ScoreResult


@dataclass(frozen=True, slots=True)
class _Reading:
    """What one model says of one request.

    Attributes:
        logprobs: of each distinct candidate's tokens.
        known: how many of the history's tokens were cached.
    """

    logprobs: list[list[float]]
    known: int


class NaiveImplicitScorer:
    """Every full sequence alone through both models, nothing kept."""

    def __init__(self, loaded: LoadedImplicitQ) -> None:
        self.name = loaded.name
        self.context = _context(loaded)
        self._loaded = loaded

    @torch.inference_mode()
    def score(self, requests: Sequence[ScoreRequest]) -> list[ScoreResult]:
        """Q of each candidate; every candidate costs its whole sequence, twice.

        Raises:
            HistoryTooLongError: history and candidate exceed a model's context.
            InvalidCandidatesError: a request has no candidates.
            MalformedHistoryError: a history without tokens, after which nothing has a probability.
        """
        return [self._score(request) for request in requests]

    def _score(self, request: ScoreRequest) -> ScoreResult:
        rendered = _render(self._loaded, request, self.context)
        sequences = list(rendered.sequences)
        start = len(rendered.history)
        q_values = tuple(self._q(token_ids, start) for token_ids in sequences)
        return ScoreResult(q_values, computed_tokens=2 * sum(map(len, sequences)))

    def _q(self, token_ids: list[int], start: int) -> float:
        model = self._loaded.model
        added_BT = model(torch.tensor([token_ids], device=model.device))
        return fsum(added_BT[0, start - 1 :].tolist())


class SharedPrefixImplicitScorer:
    """Each model computes what is new to it: histories kept, candidates as one tree.

    Args:
        cache_bytes: for the histories kept between steps, half for each model.
        tokens_per_forward: longest packed row of one forward pass.
    """

    def __init__(
        self,
        loaded: LoadedImplicitQ,
        *,
        cache_bytes: int = DEFAULT_CACHE_BYTES,
        tokens_per_forward: int = DEFAULT_TOKENS_PER_FORWARD,
    ) -> None:
        self.name = loaded.name
        self.context = _context(loaded)
        self._loaded = loaded
        self._policy, self._reference = (
            _Reader(model, cache_bytes=cache_bytes // 2, tokens_per_forward=tokens_per_forward)
            for model in (loaded.model.policy, loaded.model.reference)
        )

    @torch.inference_mode()
    def score(self, requests: Sequence[ScoreRequest]) -> list[ScoreResult]:
        """Q of each candidate, in the requests' order; tokens are counted once for each model.

        Raises:
            HistoryTooLongError: history and candidate exceed a model's context.
            InvalidCandidatesError: a request has no candidates.
            MalformedHistoryError: a history without tokens, after which nothing has a probability.
        """
        if not requests:
            return []
        rendered = [_render(self._loaded, request, self.context) for request in requests]
        readings = zip(self._policy.read(rendered), self._reference.read(rendered), strict=True)
        return [
            self._result(request, policy, reference)
            for request, (policy, reference) in zip(rendered, readings, strict=True)
        ]

    @property
    def cache(self) -> CacheUse:
        """What is kept of the histories of both models now."""
        policy, reference = self._policy.cache, self._reference.cache
        return CacheUse(policy.nbytes + reference.nbytes, policy.evictions + reference.evictions)

    def close(self) -> None:
        """Let go of every history of both models; it scores no more."""
        self._policy.clear()
        self._reference.clear()

    def _result(
        self, request: RenderedRequest, policy: _Reading, reference: _Reading
    ) -> ScoreResult:
        beta: float = self._loaded.model.config.beta
        q_values = [
            beta * fsum(p - r for p, r in zip(ours, theirs, strict=True))
            for ours, theirs in zip(policy.logprobs, reference.logprobs, strict=True)
        ]
        return ScoreResult(
            tuple(q_values[i] for i in request.index),
            computed_tokens=sum(request.new_tokens(r.known) for r in (policy, reference)),
            cached_tokens=policy.known + reference.known,
        )


class _Reader:
    """Log-probabilities of the candidates' tokens under one model, and its cache."""

    def __init__(
        self, model: PreTrainedModel, *, cache_bytes: int, tokens_per_forward: int
    ) -> None:
        self._like = next(model.parameters())
        self._packed = PackedModel(
            model,
            logits_of(model),
            cache_bytes=cache_bytes,
            tokens_per_forward=tokens_per_forward,
        )

    @property
    def cache(self) -> CacheUse:
        return self._packed.cache

    def clear(self) -> None:
        self._packed.store.clear()

    def read(self, requests: Sequence[RenderedRequest]) -> list[_Reading]:
        # The first token of an action is predicted at the history's last: it is computed again.
        with self._packed.lease([r.salted_history for r in requests], spare=1) as entries:
            known = [entry.cached_tokens for entry in entries]
            logprobs = iter(self._logprobs(requests, entries))
            for request, entry in zip(requests, entries, strict=True):
                remember(request, entry)
        return [
            _Reading(_of_each_candidate(request, logprobs), cached)
            for request, cached in zip(requests, known, strict=True)
        ]

    def _logprobs(
        self, requests: Sequence[RenderedRequest], entries: Sequence[Entry]
    ) -> list[float]:
        """Of every token of the candidates' trees, in the order of `_followers`."""
        wanted = [
            [request.tree.token_ids[token] for token in following]
            for request in requests
            for following in _followers(request.tree).values()
        ]
        found: list[float] = []
        rows = 0
        for logits_RV in self._packed.outputs(_pieces(requests, entries, self._like)):
            found += _logprobs_after(logits_RV, wanted[rows : rows + len(logits_RV)])
            rows += len(logits_RV)
        return found


def _pieces(
    requests: Sequence[RenderedRequest], entries: Sequence[Entry], like: torch.Tensor
) -> Iterator[PackedSegment]:
    """Each history with its candidates, read wherever a token of a candidate follows."""
    for request, entry in zip(requests, entries, strict=True):
        yield from pieces(request, entry, read=list(_followers(request.tree)), like=like)


def _followers(tree: TokenTree) -> dict[int, list[int]]:
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
    rows_N, tokens_N = (torch.tensor(n, dtype=torch.long, device=device) for n in (rows, tokens))
    logits_RV = logits_RV.float()
    total_R = torch.logsumexp(logits_RV, dim=-1)
    logprobs: list[float] = (logits_RV[rows_N, tokens_N] - total_R[rows_N]).tolist()
    return logprobs


def _of_each_candidate(request: RenderedRequest, logprobs: Iterator[float]) -> list[list[float]]:
    """The next values of `logprobs`, one for each token of the tree, along each candidate."""
    in_order = chain.from_iterable(_followers(request.tree).values())
    of_token = {token: next(logprobs) for token in in_order}
    return [[of_token[token] for token in path] for path in request.paths]


def _render(loaded: LoadedImplicitQ, request: ScoreRequest, context: int) -> RenderedRequest:
    rendered = render_request(loaded.renderer, request, name=loaded.name, context=context)
    if not rendered.history:
        raise MalformedHistoryError(
            "the history has 0 tokens, so the reply's first one has no probability; give a message"
        )
    return rendered


def _context(loaded: LoadedImplicitQ) -> int:
    model = loaded.model
    return min(context_length(model.policy.config), context_length(model.reference.config))

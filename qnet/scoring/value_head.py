"""Q(s, a) at the candidates' last tokens: the plain reference and the fast scorer.

A Q model that reads after the observation reads at the last token of what followed the candidate.
`NaiveScorer` runs every full sequence alone. `SharedPrefixScorer` must equal it within float
tolerance and computes only what is new: the history's unknown tokens once, then the candidates'
distinct tokens side by side, each seeing the history and its own beginning.
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from qguide.qnet.engine.context_length import context_length
from qguide.qnet.engine.kernels import upload
from qguide.qnet.engine.kv_buffer import Columns, PackedSegment, joined
from qguide.qnet.engine.packed_model import (
    DEFAULT_CACHE_BYTES,
    DEFAULT_TOKENS_PER_FORWARD,
    PackedModel,
    hidden_states_of,
)
from qguide.qnet.engine.prefix_cache import Branch, Entry
from qguide.qnet.models.checkpoint import LoadedQNet
from qguide.qnet.scoring.rendered_requests import (
    RenderedRequest,
    RenderingScorer,
    head_features,
    metered,
    request_renderer,
    results_of,
)
from qguide.qnet.sliced_scorer import Slices
from qguide.qnet.types import ScoreResult

BLOCK_TOKENS = 64
"""Most tokens that are masked from each other; a larger block is split branch by branch."""


class NaiveScorer(RenderingScorer):
    """Reference scorer: every full sequence alone, nothing cached."""

    def __init__(self, loaded: LoadedQNet) -> None:
        super().__init__(
            request_renderer(loaded, context_length(loaded.model.trunk.config), loaded.model.head.features)
        )
        self._loaded = loaded

    def slices(self, prepared: Sequence[RenderedRequest]) -> Slices[list[ScoreResult]]:
        """The results of `score`; every candidate costs its whole sequence."""
        yield {}
        return [self.score_rendered(request) for request in prepared]

    @torch.inference_mode()
    def score_rendered(self, rendered: RenderedRequest) -> ScoreResult:
        """Q of each candidate of one request."""
        sequences = list(rendered.sequences)
        features_RF = features_of([rendered])
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
        requests = request_renderer(loaded, self._packed.context, loaded.model.head.features)
        super().__init__(requests, [self._packed])

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
            features_RF = features_of(prepared)
            q_values = self._loaded.model.head(hidden_RD, features_RF).tolist()
            for request, entry in zip(prepared, entries, strict=True):
                # Before the lease ends, which files each entry under its branches.
                remember(request, entry)
        computed = [request.new_tokens(cached) for request, cached in zip(prepared, known, strict=True)]
        return results_of(prepared, q_values, computed, known)


def _segments(requests: Sequence[RenderedRequest], entries: Sequence[Entry], like: Tensor) -> Iterator[PackedSegment]:
    """Each history with its candidates, read at their last tokens, which lie in their order."""
    for owner, (request, entry) in enumerate(zip(requests, entries, strict=True)):
        last = [path[-1] for path in request.paths]
        yield from segments(request, entry, read=last, like=like, owner=owner)


def features_of(requests: Sequence[RenderedRequest]) -> Tensor | None:
    """(R, F) of all requests' candidates; None where the value head reads none."""
    features_RF = head_features(requests)
    return None if features_RF is None else torch.from_numpy(features_RF)


def segments(
    request: RenderedRequest, entry: Entry, *, read: Sequence[int], like: Tensor, owner: int = 0
) -> Iterator[PackedSegment]:
    """Segments: the history's unknown part, and the candidates, none of which sees another.

    Args:
        read: the tokens of the tree whose outputs are wanted, in order; -1 is the history's last.
    """
    # The common prefixes of candidates go through the trunk once, as a tree behind the history.
    # A mask hides the branches from each other; its size is quadratic in their tokens, so it never
    # covers more than a block, and a large branch is a segment of its own that needs none.
    known, start = len(entry.token_ids), len(request.history)
    entry.buffer.reserve(start + len(request.tree))
    ends = request.tree.ends()
    stem = _fork(ends, range(len(request.tree)))
    yield PackedSegment(
        buffer=entry.buffer,
        token_ids=[*request.history[known:], *request.tree.token_ids[:stem]],
        positions=list(range(known, start + stem)),
        column=known,
        seen=joined((), range(known)),
        read=tuple(start - known + token for token in _within(read, range(-1, stem))),
        owner=owner,
    )
    branches = range(stem, len(request.tree))
    for tokens, seen in _blocks(ends, branches, joined((), range(start + stem)), start):
        yield replace(_block(request, entry, tokens, seen, read=read, like=like), owner=owner)


def _block(
    request: RenderedRequest, entry: Entry, tokens: range, seen: Columns, *, read: Sequence[int], like: Tensor
) -> PackedSegment:
    """The segment of some of the tree's tokens, which see each other and `seen`."""
    start, tree = len(request.history), request.tree
    chain = all(tree.before[token] == token - 1 for token in tokens[1:])
    bias = None if chain else _hiding(torch.from_numpy(tree.visible(tokens)))
    return PackedSegment(
        buffer=entry.buffer,
        token_ids=[tree.token_ids[token] for token in tokens],
        positions=[start + tree.depths[token] for token in tokens],
        column=start + tokens.start,
        seen=seen,
        bias=None if bias is None else upload(bias, like.device, dtype=like.dtype),
        read=tuple(token - tokens.start for token in _within(read, tokens)),
    )


def _blocks(ends: list[int], tokens: range, seen: Columns, start: int) -> Iterator[tuple[range, Columns]]:
    """Branches that follow one token, cut so that no block is both large and branched.

    Small branches side by side share a block. A large one is cut at its first fork: the tokens
    before it are a block, which the blocks after it see.

    Args:
        tokens: the branches', one after the other.
        seen: columns that all of them see.
        start: the column of the tree's first token.

    Yields:
        The tokens of a block, and the columns that all of them see.
    """
    block = range(tokens.start, tokens.start)
    while block.stop < tokens.stop:
        branch = range(block.stop, ends[block.stop])
        if len(block) + len(branch) <= BLOCK_TOKENS:
            block = range(block.start, branch.stop)
            continue
        if block:
            yield block, seen
        if len(branch) <= BLOCK_TOKENS:
            block = branch
            continue
        stem = range(branch.start, _fork(ends, branch))
        yield stem, seen
        above = joined(seen, range(start + stem.start, start + stem.stop))
        yield from _blocks(ends, range(stem.stop, branch.stop), above, start)
        block = range(branch.stop, branch.stop)
    if block:
        yield block, seen


def _fork(ends: list[int], branch: range) -> int:
    """Index of the first token after the unbranched beginning of the tree."""
    at = branch.start
    while at < branch.stop and ends[at] == branch.stop:
        at += 1
    return at


def remember(request: RenderedRequest, entry: Entry) -> None:
    """Keep the history in its entry, and each candidate as a branch that the next step may take."""
    entry.token_ids = request.history
    start = len(request.history)
    entry.branches = [
        Branch(candidate, [start + index for index in path])
        for candidate, path in zip(request.candidates, request.paths, strict=True)
    ]


def _within(numbers: Sequence[int], wanted: range) -> Sequence[int]:
    """Select the ordered numbers that are within a range."""
    return numbers[bisect_left(numbers, wanted.start) : bisect_left(numbers, wanted.stop)]


def _hiding(seen_TT: Tensor) -> Tensor:
    """Bias of a visibility matrix: 0 where a token sees another, else -inf."""
    return torch.zeros(seen_TT.shape).masked_fill_(~seen_TT, float("-inf"))

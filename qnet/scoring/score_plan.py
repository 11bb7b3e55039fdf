"""Packed segments of a score request: its new tokens, placed after the shared history."""

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from qnet.engine.attention import PackedSegment, joined
from qnet.engine.packed_model import Salted
from qnet.engine.prefix_cache import Branch, Entry
from qnet.engine.token_trie import TokenTrie
from qnet.engine.windows import Columns
from qnet.errors import HistoryTooLongError, InvalidCandidatesError
from qnet.models.match_features import match_features, observed_features, turns_of
from qnet.models.qnet import HeadFeatures
from qnet.rendering.renderer import RenderedEpisode, Renderer
from qnet.types import ScoreRequest

BLOCK_TOKENS = 64
"""Most tokens that are masked from each other; a larger block is split branch by branch."""


@dataclass(frozen=True, slots=True)
class RenderedRequest:
    """A request as tokens, equal candidates once.

    Attributes:
        action_spans: [start, end) of each action in the history.
        candidates: in the order of their tokens; each with the observation after it, where Q is
            read there.
        action_lengths: tokens of the action in each of `candidates`.
        index: which of `candidates` each of the request's candidates is.
        tree: trie of the candidates' tokens; common prefixes are stored once.
        paths: where each of `candidates` has its tokens in the tree.
        features: (C, F) of `candidates`; None where the value head reads none.
    """

    history: list[int]
    action_spans: list[tuple[int, int]]
    candidates: list[list[int]]
    action_lengths: list[int]
    index: list[int]
    tree: TokenTrie
    paths: list[list[int]]
    cache_salt: str = ""
    features: NDArray[np.float32] | None = None

    @property
    def salted_history(self) -> Salted:
        """The key of its history in a prefix cache."""
        return self.cache_salt, self.history

    @property
    def sequences(self) -> Iterator[list[int]]:
        """History and candidate of each of the request's candidates, equal ones repeated."""
        return (self.history + self.candidates[i] for i in self.index)

    def new_tokens(self, known: int) -> int:
        """Number of tokens for a trunk that knows the history's first `known` ones."""
        return len(self.history) - known + len(self.tree)


@dataclass(frozen=True, slots=True)
class RequestRenderer:
    """Makes tokens of the requests to one Q model.

    Attributes:
        name: of the Q model.
        context: most tokens of history and candidate together.
        reads_observation: Q is read after the observation that followed the action.
        features: what the value head reads beside hidden states. They are made here, beside the
            device and not on its thread: they depend on tokens alone.
    """

    renderer: Renderer
    name: str
    context: int
    reads_observation: bool = False
    features: HeadFeatures = "none"

    def prepare(self, request: ScoreRequest) -> RenderedRequest:
        """The request's tokens.

        Raises:
            HistoryTooLongError: history and candidate exceed the context.
            InvalidCandidatesError: the request has no candidates, or observations where the Q
                model reads none, or none where it reads them.
        """
        require_candidates(request)
        require_observations(request, name=self.name, reads_observation=self.reads_observation)
        state = self.renderer.encode_state(request.history, most_tokens=self.context)
        actions = [
            tuple(self.renderer.encode_candidate(candidate, most_tokens=self.context))
            for candidate in request.candidates
        ]
        answers = _encode_observations(self.renderer, request, self.context)
        encoded = [(*action, *seen) for action, seen in zip(actions, answers, strict=True)]
        tokens = len(state.token_ids) + max(map(len, encoded))
        require_fit(tokens, name=self.name, context=self.context)
        rendered = plan_request(state, encoded, list(map(len, actions)), request.cache_salt)
        if self.features == "none":
            return rendered
        return replace(rendered, features=_features(rendered))


def plan_request(
    state: RenderedEpisode,
    encoded: Sequence[tuple[int, ...]],
    action_lengths: Sequence[int],
    cache_salt: str,
) -> RenderedRequest:
    """A state and the tokens of each candidate behind it, equal ones once.

    Args:
        action_lengths: number of tokens of the action at each candidate's beginning.
    """
    # In order, so that the tree's branches lie one after the other.
    length_of = dict(zip(encoded, action_lengths, strict=True))
    distinct = {token_ids: i for i, token_ids in enumerate(sorted(length_of))}
    tree = TokenTrie()
    return RenderedRequest(
        state.token_ids,
        state.action_spans,
        candidates=[list(token_ids) for token_ids in distinct],
        action_lengths=[length_of[token_ids] for token_ids in distinct],
        index=[distinct[token_ids] for token_ids in encoded],
        tree=tree,
        paths=[tree.add(token_ids) for token_ids in distinct],
        cache_salt=cache_salt,
    )


def require_fit(tokens: int, *, name: str, context: int) -> None:
    """Refuse a history that with its longest candidate exceeds the context."""
    if tokens > context:
        raise HistoryTooLongError(
            f"history and candidate have {tokens:,} tokens; {name} takes {context:,}; "
            "shorten the history"
        )


def _encode_observations(
    renderer: Renderer, request: ScoreRequest, context: int
) -> list[list[int]]:
    """The tokens between each candidate and the reply after it; none where there is nothing."""
    if not request.observations:
        return [[] for _ in request.candidates]
    return [
        renderer.encode_observation(request.history, action, observation, most_tokens=context)
        for action, observation in zip(request.candidates, request.observations, strict=True)
    ]


def head_features(requests: Sequence[RenderedRequest]) -> Tensor | None:
    """(R, F) of all requests' candidates, one after the other; None where none are read."""
    features = [request.features for request in requests if request.features is not None]
    return torch.from_numpy(np.concatenate(features)) if features else None


def _features(request: RenderedRequest) -> NDArray[np.float32]:
    """(C, F) of one request's candidates."""
    tails = [
        candidate[length:]
        for candidate, length in zip(request.candidates, request.action_lengths, strict=True)
    ]
    if not any(tails):
        turns = turns_of(request.history, request.action_spans)
        return match_features(turns, request.candidates)
    actions = [
        candidate[:length]
        for candidate, length in zip(request.candidates, request.action_lengths, strict=True)
    ]
    return np.concatenate(
        [
            observed_features(request.history, request.action_spans, action, tail)
            for action, tail in zip(actions, tails, strict=True)
        ]
    )


def require_observations(request: ScoreRequest, *, name: str, reads_observation: bool) -> None:
    """Refuse observations that a Q model does not read, and their absence where it does.

    Raises:
        InvalidCandidatesError: observations are given where none are read, or missing where they
            are.
    """
    if request.observations and not reads_observation:
        raise InvalidCandidatesError(
            f"candidates bring an observation, but {name} reads Q at the action, before anything "
            "is observed; leave out candidates[].observation, or name a Q model whose read_at is "
            "'observation'"
        )
    if reads_observation and len(request.observations) != len(request.candidates):
        raise InvalidCandidatesError(
            f"{name} reads Q after the observation (read_at is 'observation'), but the candidates "
            "bring none; give what trying each one answered as candidates[].observation of "
            "/v1/score, or name a Q model that reads at the action"
        )


def require_candidates(request: ScoreRequest) -> None:
    """Refuse a request that asks for nothing.

    Raises:
        InvalidCandidatesError: the request has no candidates.
    """
    if not request.candidates:
        raise InvalidCandidatesError("there are 0 candidates to score; give at least 1")


def segments(
    request: RenderedRequest, entry: Entry, *, read: Sequence[int], like: Tensor, owner: int = 0
) -> Iterator[PackedSegment]:
    """Segments: the history's unknown part, and the candidates, none of which sees another.

    Args:
        read: the tokens of the tree whose outputs are wanted, in order; -1 is the history's last.
        like: a tensor of the model's dtype on its device.
        owner: index of the request.
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
        token_ids=request.history[known:] + request.tree.token_ids[:stem],
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
    request: RenderedRequest,
    entry: Entry,
    tokens: range,
    seen: Columns,
    *,
    read: Sequence[int],
    like: Tensor,
) -> PackedSegment:
    """The segment of some of the tree's tokens, which see each other and `seen`."""
    start, tree = len(request.history), request.tree
    chain = all(tree.before[token] == token - 1 for token in tokens[1:])
    return PackedSegment(
        buffer=entry.buffer,
        token_ids=tree.token_ids[tokens.start : tokens.stop],
        positions=[start + tree.depths[token] for token in tokens],
        column=start + tokens.start,
        seen=seen,
        bias=None if chain else _hiding(tree.visible(tokens)).to(like),
        read=tuple(token - tokens.start for token in _within(read, tokens)),
    )


def _blocks(
    ends: list[int], tokens: range, seen: Columns, start: int
) -> Iterator[tuple[range, Columns]]:
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

"""Packed segments of a score request: its new tokens, placed after the shared history."""

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from qguide.qnet.engine.attention import PackedSegment, joined
from qguide.qnet.engine.prefix_cache import Branch, Entry
from qguide.qnet.engine.uploads import upload
from qguide.qnet.engine.windows import Columns
from qguide.qnet.scoring.rendered_requests import RenderedRequest

BLOCK_TOKENS = 64
"""Most tokens that are masked from each other; a larger block is split branch by branch."""


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

"""Packed segments in forward passes of a bounded size, and what their last layer leaves out.

A long history is cut, so that one pass needs little memory and others may take their turn between
two: work that takes many passes is a generator that shows each pass before it runs.

After the last layer's keys and values, a token whose output is not read affects no result. A module
that works on each token alone (queries, output projection, MLP) can therefore be given the read
rows only, and its output be put back among zeros.
"""

import threading
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from qguide.qnet.engine.attention import PackedSegment, joined
from qguide.qnet.engine.kernels import upload
from qguide.qnet.types import Slices
from qguide.qnet.work import TokenUsage

Result = TypeVar("Result")
Row = TypeVar("Row")

Passes = Generator[list[PackedSegment], None, Result]
"""Forward passes, each shown before it runs, and what came of all."""


def pack(segments: Iterable[PackedSegment], tokens_per_forward: int) -> Iterator[list[PackedSegment]]:
    """Batches of segments in order; a long one is cut where its tokens see each other causally."""
    batch: list[PackedSegment] = []
    room = tokens_per_forward
    for segment in segments:
        for part in _parts(segment, tokens_per_forward):
            if batch and len(part.token_ids) > room:
                yield batch
                batch, room = [], tokens_per_forward
            batch.append(part)
            room -= len(part.token_ids)
    if batch:
        yield batch


def batches_of_like_length(
    rows: Iterable[Row], length: Callable[[Row], int], room: int, *, most: int | None = None
) -> Iterator[list[Row]]:
    """Rows of similar length together, at least one, and up to so many tokens with padding.

    Args:
        most: rows of a batch; None is no limit of its own.
    """
    batch: list[Row] = []
    for row in sorted(rows, key=length):
        if batch and (len(batch) == most or length(row) * (len(batch) + 1) > room):
            yield batch
            batch = []
        batch.append(row)
    if batch:
        yield batch


def metered(passes: Passes[Result], spent: Counter[int]) -> Slices[Result]:
    """The same work as slices, with the tokens that each owner's segments cost added to `spent`."""
    try:
        batch = next(passes)
        while True:
            for segment in batch:
                spent[segment.owner] += len(segment.token_ids)
            yield {owner: TokenUsage(tokens, 0) for owner, tokens in spent.items()}
            batch = next(passes)
    except StopIteration as end:
        result: Result = end.value
        return result
    finally:
        passes.close()


def _parts(segment: PackedSegment, size: int) -> Iterator[PackedSegment]:
    if segment.bias is not None or len(segment.token_ids) <= size:
        if segment.token_ids:
            yield segment
        return
    for start in range(0, len(segment.token_ids), size):
        end = min(start + size, len(segment.token_ids))
        yield replace(
            segment,
            token_ids=segment.token_ids[start:end],
            positions=segment.positions[start:end],
            column=segment.column + start,
            seen=joined(segment.seen, range(segment.column, segment.column + start)),
            own=None,
            read=tuple(row - start for row in segment.read if start <= row < end),
        )


_OF_ATTENTION = ("q_proj", "o_proj", "out_proj", "dense")
_OF_LAYER = ("mlp", "shared_mlp", "feed_forward")


class _Read(threading.local):
    """Rows at which this thread's forward pass is read; None lets every token through."""

    rows: Tensor | None = None
    tokens: int = 0


class LastLayerPruning:
    """Hooks on the token-wise modules of a trunk's last layer, active within `to`.

    A trunk may serve several threads at once (a Q model and its shadow): each prunes its own
    forward passes.

    Attributes:
        layer: the last layer's index, None while nothing is pruned.
    """

    def __init__(self) -> None:
        self.layer: int | None = None
        self._read = _Read()
        self._handles: list[RemovableHandle] = []

    def attach(self, trunk: nn.Module, *, layer: int) -> None:
        """Prune this layer, the trunk's last; modules with unusual names stay as they are."""
        self.layer = layer
        for module in _token_wise(trunk, layer):
            self._handles.append(module.register_forward_pre_hook(self._take))
            self._handles.append(module.register_forward_hook(self._put_back))

    @contextmanager
    def to(self, rows: list[int], *, tokens: int, device: torch.device) -> Iterator[None]:
        """Within this, the modules compute a (1, `tokens`) batch at `rows` alone."""
        if self.layer is not None and len(rows) < tokens:
            self._read.rows = upload(rows, device, dtype=torch.long)
            self._read.tokens = tokens
        try:
            yield
        finally:
            self._read.rows = None

    def remove(self) -> None:
        """Let every token through again."""
        for handle in self._handles:
            handle.remove()
        self._handles = []
        self.layer = None

    def _take(self, _: nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...] | None:
        if self._read.rows is None:
            return None
        hidden_BND, *others = inputs
        return (hidden_BND[:, self._read.rows], *others)

    def _put_back(self, _: nn.Module, __: tuple[Any, ...], output: Tensor) -> Tensor | None:
        if self._read.rows is None:
            return None
        # The residual is added to all rows, so the shape has to be the whole one again.
        whole_BND = output.new_zeros((output.shape[0], self._read.tokens, output.shape[-1]))
        whole_BND[:, self._read.rows] = output
        return whole_BND


def _token_wise(trunk: nn.Module, layer: int) -> Iterator[nn.Module]:
    """Modules of the layer with that index that work on each token alone, by their usual names."""
    for parent in trunk.modules():
        attention = [m for m in parent.children() if getattr(m, "layer_idx", None) == layer]
        if len(attention) == 1:
            yield from _children(attention[0], _OF_ATTENTION)
            yield from _children(parent, _OF_LAYER)


def _children(parent: nn.Module, names: tuple[str, ...]) -> Iterator[nn.Module]:
    return (module for name, module in parent.named_children() if name in names)

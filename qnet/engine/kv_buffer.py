"""Keys and values of conversations, written in place, and the segments of new tokens that are written there.

What several conversations begin with is kept once.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import torch
from torch import Tensor

from qguide.qnet.engine.kernels import Part, upload

if TYPE_CHECKING:
    from qguide.qnet.engine.stacks import Beginnings, Stack

Columns = tuple[range, ...]
"""Columns of a buffer, in order; no two ranges touch."""
_GROWTH: Final = 256


# One buffer per conversation, written in place, and not blocks in a tree: those would be gathered
# or walked in every layer of every step. Room is made for many columns at a time, so that a step
# copies nothing, and what several begin with is a base that none writes to: at most two parts.
class KVBuffer:
    """Keys and values of one conversation, (heads, columns, head size) per layer.

    Columns are written in place, in any order of positions: a key carries its position. The first
    columns may be those of a `base`, which several buffers share and none writes to.

    Attributes:
        keys: the buffer's own columns, which come after the base's.
        positions: of their tokens, as one (1, columns, 1) tensor; none where no layer has a window.
        stack: where new columns are written and all are read for the time being.
        beginnings: where its first columns are read for the time being, if the stack has the others alone.
    """

    __slots__ = ("_capacity", "_shared", "base", "beginnings", "keys", "positions", "stack", "values")

    def __init__(self) -> None:
        self.keys: list[Tensor] = []
        self.values: list[Tensor] = []
        self.positions: list[Tensor] = []
        self.base: KVBuffer | None = None
        self.stack: Stack | None = None
        self.beginnings: Beginnings | None = None
        self._shared = 0
        self._capacity = 0

    @property
    def nbytes(self) -> int:
        """Bytes allocated for its own columns, the spare ones included."""
        return sum(t.nbytes for t in (*self.keys, *self.values, *self.positions))

    def seen(self, layer: int, columns: range) -> list[Part]:
        """A layer's keys and values of these columns, in two parts where some are the base's."""
        parts = []
        start, split = columns.start, min(columns.stop, self._shared)
        if self.base is not None and start < split:
            keys_HCD, values_HCD = self.base.keys[layer], self.base.values[layer]
            parts.append((keys_HCD[:, start:split], values_HCD[:, start:split]))
        if columns.stop > max(start, split):
            own = slice(max(start, split) - self._shared, columns.stop - self._shared)
            parts.append((self.keys[layer][:, own], self.values[layer][:, own]))
        return parts

    def reserve(self, columns: int) -> None:
        """Make room for `columns` in all."""
        if columns <= self._capacity:
            return
        self._capacity = -(-columns // _GROWTH) * _GROWTH
        self.keys = [self._grown(t) for t in self.keys]
        self.values = [self._grown(t) for t in self.values]
        self.positions = [self._grown(t) for t in self.positions]

    def write(self, layer: int, column: int, key_HTD: Tensor, value_HTD: Tensor) -> None:
        """Write a layer's new keys and values from `column` on."""
        if layer > len(self.keys):
            raise NotImplementedError(f"layer {layer} has attention, but one below it has none")
        if layer == len(self.keys):
            self.keys.append(self._empty(key_HTD))
            self.values.append(self._empty(value_HTD))
        start = self._own(column)
        end = start + key_HTD.shape[1]
        self.keys[layer][:, start:end] = key_HTD
        self.values[layer][:, start:end] = value_HTD

    def place(self, column: int, positions: list[int]) -> None:
        """Note the positions of new tokens, whose columns begin at `column`."""
        if not self.positions:
            self.positions.append(self._empty(torch.empty((1, 0, 1), dtype=torch.long)))
        start = self._own(column)
        self.positions[0][0, start : start + len(positions), 0] = torch.tensor(positions)

    def positions_of(self, columns: range) -> Tensor:
        """Positions of the tokens in these columns, (columns,), on the CPU."""
        split = min(max(columns.start, self._shared), columns.stop)
        own = self.positions[0][0, split - self._shared : columns.stop - self._shared, 0]
        if self.base is None or split == columns.start:
            return own
        return torch.cat([self.base.positions[0][0, columns.start : split, 0], own])

    def move(self, columns: list[int], to: int) -> None:
        """Copy scattered columns to those from `to` on."""
        if not columns:
            return
        own = [column - self._shared for column in columns]
        source, start = upload(own, self.keys[0].device), self._own(to)
        # Indexing copies before anything is written, so the two places may overlap.
        for tensor in (*self.keys, *self.values):
            tensor[:, start : start + len(own)] = tensor[:, source]
        for tensor in self.positions:  # on the CPU, whatever the device is
            tensor[:, start : start + len(own)] = tensor[:, own]

    def fork(self, columns: int, *, copied: int) -> "KVBuffer":
        """A buffer that begins with the first `columns` of this one.

        Columns of the present base are shared, the others copied. Where those are more than
        `copied`, all of the columns become a new base of both buffers.
        """
        # A long prefix is worth sharing. A short one is copied, because reading two parts costs a
        # product more in each layer, and a base cannot be written to.
        if columns - self._shared > copied:
            self._share(columns)
        fork = KVBuffer()
        fork._shared = min(columns, self._shared)
        fork.base = self.base if fork._shared else None
        fork.reserve(columns)
        rest = columns - fork._shared
        for mine, theirs in zip(self._kinds, fork._kinds, strict=True):
            for tensor in mine:
                theirs.append(fork._empty(tensor))
                theirs[-1][:, :rest] = tensor[:, :rest]
        return fork

    def make_writable(self, column: int) -> None:
        """Copy the base's columns from `column` on, so that they may be written."""
        base, shared = self.base, self._shared
        if base is None or column >= shared:
            return
        for mine, theirs in zip(self._kinds, base._kinds, strict=True):
            copied = [tensor[:, column:shared] for tensor in theirs]
            mine[:] = [torch.cat(both, dim=1) for both in zip(copied, mine, strict=True)]
        self._shared = column
        if not column:
            self.base = None

    def _share(self, columns: int) -> None:
        """Make the first columns a base of this buffer, whatever its base was before."""
        base = KVBuffer()
        base._capacity = columns
        for layer in range(len(self.keys)):
            keys, values = zip(*self.seen(layer, range(columns)), strict=True)
            base.keys.append(torch.cat(keys, dim=1))
            base.values.append(torch.cat(values, dim=1))
        if self.positions:
            base.positions.append(self.positions_of(range(columns))[None, :, None].clone())
        own = self._own(columns)
        # Cloned, because a view would keep the memory of all columns.
        rest = [[tensor[:, own:].clone() for tensor in kind] for kind in self._kinds]
        self.keys, self.values, self.positions = rest
        self.base, self._shared = base, columns

    @property
    def _kinds(self) -> tuple[list[Tensor], list[Tensor], list[Tensor]]:
        return self.keys, self.values, self.positions

    def _own(self, column: int) -> int:
        assert column >= self._shared, "a base is read by others too"
        return column - self._shared

    def _empty(self, like_HTD: Tensor) -> Tensor:
        heads, _, size = like_HTD.shape
        return like_HTD.new_empty((heads, self._capacity - self._shared, size))

    def _grown(self, full_HTD: Tensor) -> Tensor:
        grown = self._empty(full_HTD)
        grown[:, : full_HTD.shape[1]] = full_HTD
        return grown


@dataclass(frozen=True, slots=True)
class PackedSegment:
    """New tokens of one conversation, in one forward pass.

    Attributes:
        column: their keys and values go here and after.
        seen: earlier columns that every token sees.
        bias: what hides the columns from `own` to the last new one, (tokens, columns), 0 or -inf, and -inf wherever a
            token would see a later one; None where the tokens see each other causally.
        own: the first column that `bias` is about; None is `column`.
        read: which of the tokens' outputs the caller wants.
        owner: index of the request that it is computed for, among those that run together.
    """

    buffer: KVBuffer
    token_ids: list[int]
    positions: list[int]
    column: int
    seen: Columns
    bias: Tensor | None = None
    own: int | None = None
    read: tuple[int, ...] = ()
    owner: int = 0

    def columns(self, tokens: int | None = None) -> range:
        """Columns beside `seen` that its first `tokens` tokens may see; None is all tokens."""
        count = len(self.token_ids) if tokens is None else tokens
        return range(self.column if self.own is None else self.own, self.column + count)


def joined(columns: Columns, more: range) -> Columns:
    """Columns and a later range, which is merged with the last one where they touch."""
    if not more:
        return columns
    if columns and columns[-1].stop == more.start:
        return (*columns[:-1], range(columns[-1].start, more.stop))
    return (*columns, more)


def spans_of(segments: Iterable[PackedSegment]) -> Iterator[tuple[PackedSegment, slice]]:
    """Each segment and the rows that are its tokens, where the segments' tokens follow each other."""
    start = 0
    for segment in segments:
        yield segment, slice(start, start + len(segment.token_ids))
        start += len(segment.token_ids)


def read_rows(segments: Iterable[PackedSegment]) -> list[int]:
    """The rows that are read, counted from the first segment's first one; each once, in order."""
    return [span.start + row for one, span in spans_of(segments) for row in sorted(set(one.read))]

"""Keys and values of conversations, written in place; what several begin with is kept once.

Drawing takes a pass for every token. On a CPU the attention of one token over some hundred columns
takes less time than calling its kernels, so conversations of like length are copied into one tensor,
a stack, while they are drawn after, and attended to by one call. What was drawn is copied back.
"""

from collections.abc import Collection, Sequence
from dataclasses import replace
from math import inf
from typing import TYPE_CHECKING, Final

import torch
from torch import Tensor
from torch.nn.functional import pad

from qguide.qnet.engine.kernels import Part, Scoring, dense_attention, upload

if TYPE_CHECKING:
    from qguide.qnet.engine.attention import PackedSegment

_GROWTH: Final = 256
_FEWEST_STACKED: Final = 2
_MOST_STACKED: Final = 16
"""Of more, lengths differ so much that padding takes more time than calls do."""
_MOST_PADDED: Final = 1.25
"""A conversation of a stack has at most so many times the columns of the shortest."""
_STACK_ROOM: Final = 32
"""New columns for which there is room; as many again whenever they are full."""
_MOST_STACKED_BYTES: Final = 2**22
"""Keys and values of a layer, in a conversation that is worth copying: of more, reading them is
what takes time."""
_KEPT_SHARE: Final = 0.5
"""Share of a stack's conversations that have to go on, or it is made smaller."""


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
    """

    __slots__ = ("_capacity", "_shared", "base", "keys", "positions", "stack", "values")

    def __init__(self) -> None:
        self.keys: list[Tensor] = []
        self.values: list[Tensor] = []
        self.positions: list[Tensor] = []
        self.base: KVBuffer | None = None
        self.stack: Stack | None = None
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
        """Index of a column among the buffer's own ones."""
        assert column >= self._shared, "a base is read by others too"
        return column - self._shared

    def _empty(self, like_HTD: Tensor) -> Tensor:
        heads, _, size = like_HTD.shape
        return like_HTD.new_empty((heads, self._capacity - self._shared, size))

    def _grown(self, full_HTD: Tensor) -> Tensor:
        grown = self._empty(full_HTD)
        grown[:, : full_HTD.shape[1]] = full_HTD
        return grown


class Stack:
    """Copies of buffers of like length, and the columns that are new since.

    Args:
        columns: of each buffer, how many are known.
    """

    # What is known is read from the first byte to the last in each pass. Room behind each head's
    # columns would stop the CPU's prefetching, which took twice the time; so what is new lies apart.
    def __init__(self, buffers: Sequence[KVBuffer], columns: Sequence[int]) -> None:
        self.known = list(columns)
        self._buffers, self._ends = list(buffers), list(columns)
        # For each layer keys and values, (2, buffers, heads, columns, head size).
        self._old = [self._copied(layer) for layer in range(len(buffers[0].keys))]
        self._new = [old.new_zeros((*old.shape[:3], _STACK_ROOM, old.shape[4])) for old in self._old]
        for buffer in buffers:
            buffer.stack = self

    @property
    def like(self) -> Tensor:
        """A tensor of its type."""
        return self._new[0]

    @property
    def columns(self) -> int:
        """Columns that are old in some buffer."""
        return self._old[0].shape[3]

    def places(self, segments: Sequence["PackedSegment"]) -> list[int]:
        """Places of the segments' buffers, with room for their new columns."""
        place_of = {id(buffer): place for place, buffer in enumerate(self._buffers)}
        places = [place_of[id(segment.buffer)] for segment in segments]
        for place, segment in zip(places, segments, strict=True):
            self._ends[place] = segment.columns().stop
        missing = max(self._ends[place] - self.known[place] for place in places) - self._new[0].shape[3]
        if missing > 0:
            self._new = [pad(new, (0, 0, 0, max(missing, _STACK_ROOM))) for new in self._new]
        return places

    def write(self, layer: int, place_T: Tensor, new_T: Tensor, key_HTD: Tensor, value_HTD: Tensor) -> None:
        """Write a layer's keys and values of new columns."""
        for new_SHCD, state_HTD in zip(self._new[layer], (key_HTD, value_HTD), strict=True):
            new_SHCD[place_T, :, new_T] = state_HTD.transpose(0, 1)

    def seen(self, layer: int, places: slice, new: int) -> list[Part]:
        """A layer's old columns and the first new ones, each (places x heads, columns, head size)."""
        old, first = self._old[layer][:, places], self._new[layer][:, places]
        old_2XCD, new_2XCD = old.flatten(1, 2), first.flatten(1, 2)[:, :, :new]
        return [(old_2XCD[0], old_2XCD[1]), (new_2XCD[0], new_2XCD[1])]

    def leave_out(self, running: Collection[int]) -> None:
        """Drop buffers that are not among these, by their ids, if they are more than a few.

        What was written here is copied back to them.
        """
        kept = [place for place, buffer in enumerate(self._buffers) if id(buffer) in running]
        if kept and len(kept) > _KEPT_SHARE * len(self._buffers):
            return
        for place in set(range(len(self._buffers))).difference(kept):
            self._restore(place)
        if kept:
            self._old, self._new = ([tensor[:, kept] for tensor in layers] for layers in (self._old, self._new))
        self._buffers = [self._buffers[place] for place in kept]
        self.known = [self.known[place] for place in kept]
        self._ends = [self._ends[place] for place in kept]

    def _copied(self, layer: int) -> Tensor:
        heads, _, size = self._buffers[0].keys[layer].shape
        shape = (2, len(self._buffers), heads, max(self.known), size)
        stacked = self._buffers[0].keys[layer].new_empty(shape)
        for place, (buffer, known) in enumerate(zip(self._buffers, self.known, strict=True)):
            # Zeros, because a weight of 0 does not hide a NaN.
            stacked[:, place, :, known:] = 0.0
            start = 0
            for keys, values in buffer.seen(layer, range(known)):
                columns = slice(start, start + keys.shape[1])
                stacked[0, place, :, columns], stacked[1, place, :, columns] = keys, values
                start = columns.stop
        return stacked

    def _restore(self, place: int) -> None:
        buffer, start, end = self._buffers[place], self.known[place], self._ends[place]
        buffer.stack = None
        buffer.reserve(end)
        for layer, new in enumerate(self._new):
            buffer.write(layer, start, *new[:, place, :, : end - start])


class StackedRows:
    """Neighbours in the packed row whose buffers lie in one stack: one token each, or several under a bias.

    Args:
        start: index of their first row.

    Attributes:
        rows: where they are in the packed row.
    """

    def __init__(self, stack: Stack, segments: Sequence["PackedSegment"], start: int) -> None:
        self._stack = stack
        places = stack.places(segments)
        lengths = [len(segment.token_ids) for segment in segments]
        self.rows = slice(start, start + sum(lengths))
        # Conversations between the first and the last that have no token here are computed in vain.
        self._places = slice(places[0], places[-1] + 1)
        place_T = [place - places[0] for place, length in zip(places, lengths, strict=True) for _ in range(length)]
        line_T = [line for length in lengths for line in range(length)]
        new = [segment.column - stack.known[place] for place, segment in zip(places, segments, strict=True)]
        new_T = [first + line for first, length in zip(new, lengths, strict=True) for line in range(length)]
        self._place_T, self._line_T, self._new_T = (torch.tensor(each) for each in (place_T, line_T, new_T))
        self._new = max(new_T) + 1
        self._row_SL = torch.zeros((place_T[-1] + 1, max(lengths)), dtype=torch.long)
        self._row_SL[self._place_T, self._line_T] = torch.arange(len(place_T))
        self._bias_SLC = self._hiding([place - places[0] for place in places], segments)

    def attend(self, layer: int, states: tuple[Tensor, Tensor, Tensor], scoring: Scoring) -> Tensor:
        """Attention of the rows, (T, H, D), whose keys and values are written to the stack.

        Args:
            states: queries, scaled, (H, T, D), keys and values (Hkv, T, D).
        """
        query_HTD, key_HTD, value_HTD = states
        self._stack.write(layer, self._place_T + self._places.start, self._new_T, key_HTD, value_HTD)
        places = len(self._bias_SLC)
        if scoring.sinks_H is not None:
            scoring = replace(scoring, sinks_H=scoring.sinks_H.repeat(places))
        # To the kernel conversations are what heads are: each has columns of its own.
        query_XLD = query_HTD[:, self._row_SL].transpose(0, 1).flatten(0, 1)
        bias_X1LC = self._bias_SLC.repeat_interleave(len(key_HTD), dim=0).unsqueeze(1)
        mixed_LXD = dense_attention(query_XLD, self._stack.seen(layer, self._places, self._new), bias_X1LC, (), scoring)
        mixed_LSHD: Tensor = mixed_LXD.view(len(mixed_LXD), places, -1, mixed_LXD.shape[-1])
        return mixed_LSHD[self._line_T, self._place_T]

    def _hiding(self, places: Sequence[int], segments: Sequence["PackedSegment"]) -> Tensor:
        """0 or -inf, (conversations, lines, old columns and new): what each line does not see."""
        old = self._stack.columns
        known_S = torch.tensor(self._stack.known[self._places])
        # The new columns that every line sees; those of a fork come from its bias.
        new_S = torch.zeros(len(known_S), dtype=torch.long)
        new_S[places] = torch.tensor([_seen_by_all(segment) for segment in segments]) - known_S[places]
        column_C = torch.arange(old + self._new)
        hidden_SC = torch.where(column_C < old, column_C >= known_S[:, None], column_C - old >= new_S[:, None])
        bias_SC = self._stack.like.new_zeros(hidden_SC.shape).masked_fill_(hidden_SC, -inf)
        bias_SLC = bias_SC[:, None].repeat(1, self._row_SL.shape[1], 1)
        for place, segment in zip(places, segments, strict=True):
            if segment.bias is not None:
                first = segment.columns().start - self._stack.known[place + self._places.start] + old
                bias_SLC[place, : len(segment.token_ids), first : first + segment.bias.shape[1]] = segment.bias
        return bias_SLC


def _seen_by_all(segment: "PackedSegment") -> int:
    return segment.columns().stop if segment.bias is None else segment.columns().start


def stack_alike(buffers: Sequence[KVBuffer], columns: Sequence[int]) -> list[Stack]:
    """Stacks of neighbours that have about the same number of columns, where that saves time.

    Args:
        columns: of each buffer, how many are known; best in order.
    """
    stacks: list[list[tuple[KVBuffer, int]]] = [[]]
    for buffer, count in zip(buffers, columns, strict=True):
        if len(stacks[-1]) == _MOST_STACKED or (stacks[-1] and count > _MOST_PADDED * stacks[-1][0][1] + _STACK_ROOM):
            stacks.append([])
        keys, values = buffer.keys[0], buffer.values[0]
        if 2 * count * keys[:, :1].nbytes <= _MOST_STACKED_BYTES and keys.shape == values.shape:
            stacks[-1].append((buffer, count))
    return [Stack([b for b, _ in alike], [c for _, c in alike]) for alike in stacks if len(alike) >= _FEWEST_STACKED]

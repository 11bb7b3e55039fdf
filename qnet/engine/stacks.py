"""Keys and values of several conversations side by side, for passes that read a token of each.

Drawing takes a pass for every token. On a CPU the attention of one token over some hundred columns
takes less time than calling its kernels, so conversations of like length are copied into one tensor
while they are drawn after, and attended to by one call. What was drawn is copied back.
"""

from collections.abc import Collection, Sequence
from dataclasses import replace
from math import inf
from typing import TYPE_CHECKING, Final

import torch
from torch import Tensor
from torch.nn.functional import pad

from qguide.qnet.engine.kernels import Part, Scoring, dense_attention
from qguide.qnet.engine.kv_buffer import KVBuffer

if TYPE_CHECKING:
    from qguide.qnet.engine.attention import PackedSegment

_FEWEST: Final = 2
_MOST: Final = 16
"""Of more, lengths differ so much that padding takes more time than calls do."""
_PADDED: Final = 1.25
_ROOM: Final = 32
"""New columns for which there is room; as many again whenever they are full."""
_MOST_BYTES: Final = 2**22
"""Keys and values of a layer, in a conversation that is worth copying: of more, reading them is
what takes time."""
_KEPT: Final = 0.5
"""Share of a stack's conversations that have to go on, or it is made smaller."""


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
        self._new = [old.new_zeros((*old.shape[:3], _ROOM, old.shape[4])) for old in self._old]
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
            self._new = [pad(new, (0, 0, 0, max(missing, _ROOM))) for new in self._new]
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
        if kept and len(kept) > _KEPT * len(self._buffers):
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
        if len(stacks[-1]) == _MOST or (stacks[-1] and count > _PADDED * stacks[-1][0][1] + _ROOM):
            stacks.append([])
        keys, values = buffer.keys[0], buffer.values[0]
        if 2 * count * keys[:, :1].nbytes <= _MOST_BYTES and keys.shape == values.shape:
            stacks[-1].append((buffer, count))
    return [Stack([b for b, _ in alike], [c for _, c in alike]) for alike in stacks if len(alike) >= _FEWEST]

"""Conversations side by side, while they are drawn after on a CPU.

Drawing takes a pass for every token. On a CPU the attention of one token over some hundred columns
takes less time than calling its kernels, so conversations of like length are copied into one tensor,
a stack, while they are drawn after, and attended to by one call. What was drawn is copied back.

What several begin with is copied once. Their rows attend to it as the rows of one matrix product,
which reads it once for all of them, and the stack has what comes after.

Which are copied, and in how much memory, is `stack_layout`'s.
"""

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from math import inf
from typing import Final

import torch
from torch import Tensor
from torch.nn.functional import pad

from qguide.qnet.engine.kernels import Part, PartialAttention, Scoring, dense_attention, partial_attention
from qguide.qnet.engine.kv_buffer import KVBuffer, PackedSegment

STACK_ROOM: Final = 32
"""New columns for which there is room; as many again whenever they are full."""
_KEPT_SHARE: Final = 0.5  # share of a stack's conversations that have to go on, or it is made smaller
MULTIPLE: Final = 32
"""Columns of which beginnings are multiples, so that sizes come again."""


class Stack:
    """Copies of these columns of buffers, about as many of each, and the columns that are new since."""

    # What is known is read from the first byte to the last in each pass. Room behind each head's
    # columns would stop the CPU's prefetching, which took twice the time; so what is new lies apart.
    def __init__(self, buffers: Sequence[KVBuffer], columns: Sequence[range]) -> None:
        self.old = [len(known) for known in columns]
        self.known = [known.stop for known in columns]
        self._buffers, self._ends = list(buffers), list(self.known)
        self._old = list(_copies(buffers, columns, most=max(self.old)))
        self._new = [old.new_zeros((*old.shape[:3], STACK_ROOM, old.shape[4])) for old in self._old]
        for buffer in buffers:
            buffer.stack = self

    @property
    def like(self) -> Tensor:
        """A tensor of its type."""
        return self._new[0]

    @property
    def nbytes(self) -> int:
        """Bytes of its copies and of the room for new columns."""
        return sum(tensor.nbytes for tensor in (*self._old, *self._new))

    @property
    def columns(self) -> int:
        """Columns that are old in some buffer."""
        return self._old[0].shape[3]

    def places(self, segments: Sequence[PackedSegment]) -> list[int]:
        """Places of the segments' buffers, with room for their new columns."""
        place_of = {id(buffer): place for place, buffer in enumerate(self._buffers)}
        places = [place_of[id(segment.buffer)] for segment in segments]
        for place, segment in zip(places, segments, strict=True):
            self._ends[place] = segment.columns().stop
        missing = max(self._ends[place] - self.known[place] for place in places) - self._new[0].shape[3]
        if missing > 0:
            self._new = [pad(new, (0, 0, 0, max(missing, STACK_ROOM))) for new in self._new]
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
        self.old, self.known, self._ends = (
            [numbers[place] for place in kept] for numbers in (self.old, self.known, self._ends)
        )

    def _restore(self, place: int) -> None:
        buffer, start, end = self._buffers[place], self.known[place], self._ends[place]
        buffer.stack = buffer.beginnings = None
        buffer.reserve(end)
        for layer, new in enumerate(self._new):
            buffer.write(layer, start, *new[:, place, :, : end - start])


def _copies(buffers: Sequence[KVBuffer], columns: Sequence[range], *, most: int) -> Iterator[Tensor]:
    """For each layer keys and values, (2, buffers, heads, most columns, head size)."""
    for layer, keys_HCD in enumerate(buffers[0].keys):
        heads, _, size = keys_HCD.shape
        copy = keys_HCD.new_empty((2, len(buffers), heads, most, size))
        for place, (buffer, known) in enumerate(zip(buffers, columns, strict=True)):
            # Zeros, because a weight of 0 does not hide a NaN.
            copy[:, place, :, len(known) :] = 0.0
            start = 0
            for keys, values in buffer.seen(layer, known):
                own = slice(start, start + keys.shape[1])
                copy[0, place, :, own], copy[1, place, :, own] = keys, values
                start = own.stop
        yield copy


class Beginnings:
    """Copies of the columns, so many of each family of buffers, with which conversations of a stack begin."""

    def __init__(self, families: Sequence[tuple[Sequence[KVBuffer], int]]) -> None:
        self._places = {id(buffer): place for place, (family, _) in enumerate(families) for buffer in family}
        lengths = [columns for _, columns in families]
        most = -(-max(lengths) // MULTIPLE) * MULTIPLE
        self._keys: list[Tensor] = []
        self._values: list[Tensor] = []
        firsts, columns = [family[0] for family, _ in families], [range(length) for length in lengths]
        for copy in _copies(firsts, columns, most=most):
            # Keys with their columns last, (families, KV heads, head size, columns): with few rows the product
            # takes a quarter less time.
            self._keys.append(copy[0].transpose(2, 3).contiguous())
            # Cloned, because a view would keep the memory of the keys as well.
            self._values.append(copy[1].clone())
        hidden_FC = torch.arange(most) >= torch.tensor(lengths)[:, None]
        bias_FC = self._keys[0].new_zeros(hidden_FC.shape).masked_fill_(hidden_FC, -inf)
        self._bias_F1C = bias_FC[:, None]
        for family, _ in families:
            for buffer in family:
                buffer.beginnings = self

    @property
    def nbytes(self) -> int:
        """Bytes of its copies."""
        return sum(tensor.nbytes for tensor in (*self._keys, *self._values))

    def place(self, buffer: KVBuffer) -> int:
        """Index of a buffer's beginning."""
        return self._places[id(buffer)]

    def __len__(self) -> int:
        return len(self._bias_F1C)

    def leave_out(self, running: Collection[int]) -> None:
        """Drop beginnings of none of these buffers, by their ids, if they are more than a few."""
        kept = sorted({place for buffer, place in self._places.items() if buffer in running})
        if not kept or len(kept) > _KEPT_SHARE * len(self):
            return
        self._keys, self._values = ([t[kept] for t in layers] for layers in (self._keys, self._values))
        self._bias_F1C = self._bias_F1C[kept]
        number = {place: number for number, place in enumerate(kept)}
        self._places = {buffer: number[place] for buffer, place in self._places.items() if place in number}

    def attend(self, layer: int, query_XLD: Tensor, scoring: Scoring) -> PartialAttention:
        """Attention of L rows to each beginning; X is beginnings x heads."""
        keys, values = self._keys[layer], self._values[layer]
        bias_K1C = self._bias_F1C.repeat_interleave(keys.shape[1], dim=0)
        return partial_attention(query_XLD, (keys.flatten(0, 1), values.flatten(0, 1)), bias_K1C, scoring)


class BegunRows:
    """Rows of a packed row whose conversations have beginnings of one object."""

    def __init__(self, beginnings: Beginnings, spans: Iterable[tuple[PackedSegment, slice]]) -> None:
        self._beginnings = beginnings
        lines = [0] * len(beginnings)
        found = []
        for segment, rows in spans:
            place = beginnings.place(segment.buffer)
            for row in range(rows.start, rows.stop):
                found.append((row, place, lines[place]))
                lines[place] += 1
        self._row_T, self._place_T, self._line_T = torch.tensor(found).T
        self._row_FL = torch.zeros((len(lines), max(lines)), dtype=torch.long)
        self._row_FL[self._place_T, self._line_T] = self._row_T

    def attend(self, layer: int, query_HTD: Tensor, scoring: Scoring, into: PartialAttention) -> None:
        """Write the attention of its rows, (T, H, D), and the log of the sum of their scores, (T, H)."""
        query_XLD = query_HTD[:, self._row_FL].transpose(0, 1).flatten(0, 1)
        for all_T, found_XL in zip(into, self._beginnings.attend(layer, query_XLD, scoring), strict=True):
            found_FHL = found_XL.unflatten(0, (len(self._beginnings), -1))
            all_T[self._row_T] = found_FHL[self._place_T, :, self._line_T]


def begun_rows(spans: Iterable[tuple[PackedSegment, slice]]) -> list[BegunRows]:
    """The rows whose conversations have a beginning in common with others."""
    spans_of: dict[int, tuple[Beginnings, list[tuple[PackedSegment, slice]]]] = {}
    for segment, rows in spans:
        if (beginnings := segment.buffer.beginnings) is not None:
            spans_of.setdefault(id(beginnings), (beginnings, []))[1].append((segment, rows))
    return [BegunRows(*found) for found in spans_of.values()]


def attend_beginnings(
    begun: Sequence[BegunRows], layer: int, query_HTD: Tensor, value_size: int, scoring: Scoring
) -> PartialAttention:
    """Attention of all rows to their beginnings, (T, H, D) and (T, H); without weight where a row has none."""
    heads, rows, _ = query_HTD.shape
    # A column whose score is the lowest has no weight.
    found = query_HTD.new_zeros((rows, heads, value_size)), query_HTD.new_full((rows, heads), -inf)
    for each in begun:
        each.attend(layer, query_HTD, scoring, found)
    return found


class StackedRows:
    """Neighbours in the packed row whose buffers lie in one stack: one token each, or several under a bias."""

    def __init__(self, stack: Stack, segments: Sequence[PackedSegment], start: int) -> None:
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
        self._begun = any(segment.buffer.beginnings is not None for segment in segments)
        self._place_T, self._line_T, self._new_T = (torch.tensor(each) for each in (place_T, line_T, new_T))
        self._new = max(new_T) + 1
        self._row_SL = torch.zeros((place_T[-1] + 1, max(lengths)), dtype=torch.long)
        self._row_SL[self._place_T, self._line_T] = torch.arange(len(place_T))
        self._bias_SLC = self._hiding([place - places[0] for place in places], segments)

    def attend(
        self, layer: int, states: tuple[Tensor, Tensor, Tensor], scoring: Scoring, beginnings: PartialAttention | None
    ) -> Tensor:
        """Attention of the rows, (T, H, D), whose keys and values are written to the stack.

        Args:
            states: queries, scaled, (H, T, D), keys and values (Hkv, T, D).
            beginnings: attention of the rows to what several conversations begin with, (T, H, D) and (T, H).
        """
        query_HTD, key_HTD, value_HTD = states
        self._stack.write(layer, self._place_T + self._places.start, self._new_T, key_HTD, value_HTD)
        places = len(self._bias_SLC)
        if scoring.sinks_H is not None:
            scoring = replace(scoring, sinks_H=scoring.sinks_H.repeat(places))
        # To the kernel conversations are what heads are: each has columns of its own.
        query_XLD = query_HTD[:, self._row_SL].transpose(0, 1).flatten(0, 1)
        bias_X1LC = self._bias_SLC.repeat_interleave(len(key_HTD), dim=0).unsqueeze(1)
        partials: list[PartialAttention] = []
        if beginnings is not None and self._begun:
            mixed, score = (each[self._row_SL].transpose(1, 2).flatten(0, 1) for each in beginnings)
            partials = [(mixed, score)]
        parts = self._stack.seen(layer, self._places, self._new)
        mixed_LXD = dense_attention(query_XLD, parts, bias_X1LC, partials, scoring)
        mixed_LSHD: Tensor = mixed_LXD.view(len(mixed_LXD), places, -1, mixed_LXD.shape[-1])
        return mixed_LSHD[self._line_T, self._place_T]

    def _hiding(self, places: Sequence[int], segments: Sequence[PackedSegment]) -> Tensor:
        """0 or -inf, (conversations, lines, old columns and new): what each line does not see."""
        old = self._stack.columns
        known_S, old_S = (torch.tensor(each[self._places]) for each in (self._stack.known, self._stack.old))
        # The new columns that every line sees; those of a fork come from its bias.
        new_S = torch.zeros(len(known_S), dtype=torch.long)
        seen = [one.columns().stop if one.bias is None else one.columns().start for one in segments]
        new_S[places] = torch.tensor(seen) - known_S[places]
        column_C = torch.arange(old + self._new)
        hidden_SC = torch.where(column_C < old, column_C >= old_S[:, None], column_C - old >= new_S[:, None])
        bias_SC = self._stack.like.new_zeros(hidden_SC.shape).masked_fill_(hidden_SC, -inf)
        bias_SLC = bias_SC[:, None].repeat(1, self._row_SL.shape[1], 1)
        for place, segment in zip(places, segments, strict=True):
            if segment.bias is not None:
                first = segment.columns().start - self._stack.known[place + self._places.start] + old
                bias_SLC[place, : len(segment.token_ids), first : first + segment.bias.shape[1]] = segment.bias
        return bias_SLC

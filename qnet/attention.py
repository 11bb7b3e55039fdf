"""Attention over packed tokens: no padding, histories stored once, in-place key/value slabs.

A forward pass takes one row of tokens that belong to many conversations. Which tokens see which
is a `Plan`: a list of pieces, each with the slab of its conversation. It reaches this function
through the model's keyword arguments, so any transformers trunk with pluggable attention works.
"""

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS, sdpa_mask
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

PACKED_ATTENTION = "qguide_packed"
_GROWTH = 256
_ROWS_AT_ONCE = 64


class Slab:
    """Keys and values of one conversation, (heads, columns, head size) per layer.

    Columns are written in place; a column says nothing about its position, which the keys
    already carry. The first columns may be those of a `base` that several slabs begin with and
    none writes to.

    Attributes:
        keys: the slab's own columns, which come after the base's.
    """

    __slots__ = ("_capacity", "_shared", "base", "keys", "values")

    def __init__(self) -> None:
        self.keys: list[Tensor] = []
        self.values: list[Tensor] = []
        self.base: Slab | None = None
        self._shared = 0
        self._capacity = 0

    @property
    def nbytes(self) -> int:
        """Bytes allocated for its own columns, the spare ones included."""
        return sum(t.nbytes for t in (*self.keys, *self.values))

    def seen(self, layer: int, visible: int) -> list[tuple[Tensor, Tensor]]:
        """A layer's keys and values of the columns below `visible`, in one part or two."""
        own = visible - self._shared
        parts = [(self.keys[layer][:, :own], self.values[layer][:, :own])]
        if self.base is not None:
            keys_HCD, values_HCD = self.base.keys[layer], self.base.values[layer]
            parts.insert(0, (keys_HCD[:, : self._shared], values_HCD[:, : self._shared]))
        return parts

    def reserve(self, columns: int) -> None:
        """Make room for `columns` in all."""
        if columns <= self._capacity:
            return
        self._capacity = -(-columns // _GROWTH) * _GROWTH
        self.keys = [self._grown(t) for t in self.keys]
        self.values = [self._grown(t) for t in self.values]

    def write(self, layer: int, column: int, key_HTD: Tensor, value_HTD: Tensor) -> None:
        """Put a layer's new keys and values at `column` and after.

        Raises:
            NotImplementedError: a layer below this one has no keys.
        """
        if layer > len(self.keys):
            raise NotImplementedError(f"layer {layer} has attention, but one below it has none")
        if layer == len(self.keys):
            self.keys.append(self._empty(key_HTD))
            self.values.append(self._empty(value_HTD))
        start = self._own(column)
        end = start + key_HTD.shape[1]
        self.keys[layer][:, start:end] = key_HTD
        self.values[layer][:, start:end] = value_HTD

    def move(self, columns: list[int], to: int) -> None:
        """Copy scattered columns to `to` and after."""
        if not columns:
            return
        source = torch.tensor(columns) - self._shared
        start = self._own(to)
        for slab in (*self.keys, *self.values):
            slab[:, start : start + len(columns)] = slab[:, source.to(slab.device)]

    def fork(self, columns: int, *, copied: int) -> "Slab":
        """A slab that begins with the first `columns` of this one.

        What both hold already is shared, the rest copied; where that would be more than `copied`
        columns, they become a base of both.
        """
        if columns - self._shared > copied:
            self._share(columns)
        fork = Slab()
        fork._shared = min(columns, self._shared)
        fork.base = self.base if fork._shared else None
        fork.reserve(columns)
        rest = columns - fork._shared
        for mine, theirs in ((self.keys, fork.keys), (self.values, fork.values)):
            for slab in mine:
                theirs.append(fork._empty(slab))
                theirs[-1][:, :rest] = slab[:, :rest]
        return fork

    def make_writable(self, column: int) -> None:
        """Copy what the base holds of `column` and after."""
        base, shared = self.base, self._shared
        if base is None or column >= shared:
            return
        for mine, theirs in ((self.keys, base.keys), (self.values, base.values)):
            copied = [slab[:, column:shared] for slab in theirs]
            mine[:] = [torch.cat(both, dim=1) for both in zip(copied, mine, strict=True)]
        self._shared = column
        if not column:
            self.base = None

    def _share(self, columns: int) -> None:
        """Make the first columns a base of this slab, whatever its base was before."""
        base = Slab()
        base._capacity = columns
        for layer in range(len(self.keys)):
            keys, values = zip(*self.seen(layer, columns), strict=True)
            base.keys.append(torch.cat(keys, dim=1))
            base.values.append(torch.cat(values, dim=1))
        own = self._own(columns)
        self.keys = [slab[:, own:].clone() for slab in self.keys]
        self.values = [slab[:, own:].clone() for slab in self.values]
        self.base, self._shared = base, columns

    def _own(self, column: int) -> int:
        """Where a column lies among the slab's own."""
        assert column >= self._shared, "a base is read by others too"
        return column - self._shared

    def _empty(self, like_HTD: Tensor) -> Tensor:
        heads, _, size = like_HTD.shape
        return like_HTD.new_empty((heads, self._capacity - self._shared, size))

    def _grown(self, slab_HTD: Tensor) -> Tensor:
        grown = self._empty(slab_HTD)
        grown[:, : slab_HTD.shape[1]] = slab_HTD
        return grown


@dataclass(frozen=True, slots=True)
class Piece:
    """New tokens of one conversation, in one forward pass.

    Attributes:
        slab: where the conversation's keys and values lie.
        token_ids: the new tokens.
        positions: their positions.
        column: their keys and values go here and after.
        context: columns below it are seen by every token.
        bias: added to the scores of the columns from `context` to the last new one, (tokens,
            columns), 0 or -inf; None where `context == column` and the tokens see each other
            causally.
        read: which of the tokens' outputs the caller wants.
    """

    slab: Slab
    token_ids: list[int]
    positions: list[int]
    column: int
    context: int
    bias: Tensor | None = None
    read: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Plan:
    """The pieces of one forward pass, in the order of their tokens.

    Attributes:
        last_layer: where only the tokens that are read look back; None lets all of them.
    """

    pieces: list[Piece]
    last_layer: int | None = None
    _starts: list[int] = field(init=False)

    def __post_init__(self) -> None:
        starts = [0]
        for piece in self.pieces:
            piece.slab.reserve(piece.column + len(piece.token_ids))
            starts.append(starts[-1] + len(piece.token_ids))
        object.__setattr__(self, "_starts", starts)

    @property
    def spans(self) -> list[tuple[Piece, int, int]]:
        """Each piece and the rows of the packed batch that are its tokens."""
        return list(zip(self.pieces, self._starts, self._starts[1:], strict=False))

    @property
    def read_rows(self) -> list[int]:
        """The rows of the packed batch whose outputs are wanted."""
        return [start + row for piece, start, _ in self.spans for row in piece.read]


def packed_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    plan: Plan | None = None,
    scaling: float | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """Attention of a packed row under `plan`; without one, the stock SDPA attention.

    Args:
        query: (1, H, N, D); key and value: (1, Hkv, N, D), positions already applied.

    Returns:
        (1, N, H, D) and no weights.
    """
    if plan is None:
        stock: tuple[Tensor, None] = sdpa_attention_forward(
            module, query, key, value, attention_mask, scaling=scaling, **kwargs
        )
        return stock
    _refuse_unknown(kwargs)
    layer = int(module.layer_idx)  # type: ignore[arg-type]
    query_HND = query[0] * (query.shape[-1] ** -0.5 if scaling is None else scaling)
    out_NHD = query.new_empty((query.shape[2], query.shape[1], value.shape[-1]))
    spans = plan.spans
    for piece, start, end in spans:
        piece.slab.write(layer, piece.column, key[0, :, start:end], value[0, :, start:end])
    attend = _attend_where_read if layer == plan.last_layer else _attend
    for piece, start, end in spans:
        attend(piece, layer, query_HND[:, start:end], out_NHD[start:end], kwargs)
    return out_NHD.unsqueeze(0), None


def _attend(
    piece: Piece, layer: int, query_HTD: Tensor, out_THD: Tensor, kwargs: dict[str, Any]
) -> None:
    """One piece, its rows in chunks so that the scores stay small."""
    rows = query_HTD.shape[1]
    for first in range(0, rows, _ROWS_AT_ONCE):
        last = min(rows, first + _ROWS_AT_ONCE)
        if piece.bias is None:
            context, visible = piece.column + first, piece.column + last
            bias = _causal(last - first, query_HTD)
        else:
            context, visible = piece.context, piece.column + rows
            bias = piece.bias[first:last]
        _check_window(visible, kwargs)
        out_THD[first:last] = _dense(
            query_HTD[:, first:last], piece.slab.seen(layer, visible), bias, context
        )


def _attend_where_read(
    piece: Piece, layer: int, query_HTD: Tensor, out_THD: Tensor, kwargs: dict[str, Any]
) -> None:
    """One piece of the last layer; the rows that nobody reads become zeros."""
    read, tokens = sorted(set(piece.read)), len(piece.token_ids)
    if len(read) == tokens:
        _attend(piece, layer, query_HTD, out_THD, kwargs)
        return
    out_THD.zero_()
    visible = piece.column + tokens
    _check_window(visible, kwargs)
    parts = piece.slab.seen(layer, visible)
    for first in range(0, len(read), _ROWS_AT_ONCE):
        rows_R = torch.tensor(read[first : first + _ROWS_AT_ONCE], device=out_THD.device)
        if piece.bias is None:
            later_RT = torch.arange(tokens, device=rows_R.device) > rows_R[:, None]
            bias = query_HTD.new_zeros(later_RT.shape).masked_fill_(later_RT, float("-inf"))
            context = piece.column
        else:
            bias, context = piece.bias[rows_R], piece.context
        out_THD[rows_R] = _dense(query_HTD[:, rows_R], parts, bias, context)


def _check_window(visible: int, kwargs: dict[str, Any]) -> None:
    window = kwargs.get("sliding_window")
    assert window is None or visible <= window, "the context is limited to the window"


def _dense(
    query_HTD: Tensor,
    parts: list[tuple[Tensor, Tensor]],
    bias_TC: Tensor | None,
    context: int,
) -> Tensor:
    """Attention of T rows over C columns, the query heads of a KV head folded into the rows.

    Args:
        parts: keys and values (K, part of C, D); a base's and the slab's own are never joined.
    """
    heads, rows, size = query_HTD.shape
    kv_heads = parts[0][0].shape[0]
    folded = query_HTD.reshape(kv_heads, heads // kv_heads * rows, size)
    scores = _joined([torch.bmm(folded, keys.transpose(1, 2)) for keys, _ in parts])
    if bias_TC is not None:
        scores.view(kv_heads, -1, rows, scores.shape[-1])[..., context:] += bias_TC
    weights = torch.softmax(scores, dim=-1, dtype=torch.float32).to(query_HTD.dtype)
    lengths = [keys.shape[1] for keys, _ in parts]
    mixed = torch.bmm(weights[..., : lengths[0]], parts[0][1])
    for (_, values), length in zip(parts[1:], lengths[1:], strict=True):
        mixed = torch.baddbmm(mixed, weights[..., -length:], values)
    return mixed.view(heads, rows, mixed.shape[-1]).transpose(0, 1)


def _joined(scores: list[Tensor]) -> Tensor:
    return scores[0] if len(scores) == 1 else torch.cat(scores, dim=-1)


def _causal(rows: int, like: Tensor) -> Tensor | None:
    """What hides the later ones among `rows` new tokens; nothing to hide from a single one."""
    if rows == 1:
        return None
    return like.new_full((rows, rows), float("-inf")).triu(1)


def _refuse_unknown(kwargs: dict[str, Any]) -> None:
    for name in ("softcap", "s_aux", "position_bias"):
        if kwargs.get(name) is not None:
            raise NotImplementedError(f"packed attention knows no {name}")


def register() -> None:
    """Make the packed attention known to transformers; safe to call again."""
    ALL_ATTENTION_FUNCTIONS.register(PACKED_ATTENTION, packed_attention)
    ALL_MASK_ATTENTION_FUNCTIONS.register(PACKED_ATTENTION, sdpa_mask)

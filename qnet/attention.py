"""Attention over packed tokens: no padding, histories stored once, read as they lie.

A forward pass takes one row of tokens that belong to many conversations. Which tokens see which
is a `Plan`: a list of pieces, each with the slab of its conversation. It reaches this function
through the model's keyword arguments, so any transformers trunk with pluggable attention works.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS, sdpa_mask
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from qnet.slab import Part, Slab

PACKED_ATTENTION = "qguide_packed"
_ROWS_AT_ONCE = 64
FEWEST_TILED_ROWS = 32
FEWEST_TILED_COLUMNS = 256

Digest = tuple[Tensor, Tensor]
"""What attention over some columns gave T rows, (heads, T, head size), and the log of the sum of
their exponentiated scores, (heads, T)."""


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
            columns), 0 or -inf, and -inf wherever a token would see a later one; None where
            `context == column` and the tokens see each other causally.
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
    """One piece, its rows in chunks so that the scores stay small.

    What all rows see is digested for all of them at once where tiles are faster.
    """
    rows = query_HTD.shape[1]
    _check_window(piece.column + rows, kwargs)
    tiled = out_THD.shape[-1] == query_HTD.shape[-1] and _tiles_pay(query_HTD, piece.context)
    start = piece.context if tiled else 0
    digests = [_digest(query_HTD, part) for part in piece.slab.seen(layer, range(start))]
    for first in range(0, rows, _ROWS_AT_ONCE):
        last = min(rows, first + _ROWS_AT_ONCE)
        end = piece.column + last
        if piece.bias is None:
            bias = _causal(last - first, query_HTD)
        else:
            bias = piece.bias[first:last, : end - piece.context]
        out_THD[first:last] = _dense(
            query_HTD[:, first:last],
            piece.slab.seen(layer, range(start, end)),
            bias,
            [(out[:, first:last], score[:, first:last]) for out, score in digests],
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
    parts = piece.slab.seen(layer, range(visible))
    for first in range(0, len(read), _ROWS_AT_ONCE):
        rows_R = torch.tensor(read[first : first + _ROWS_AT_ONCE], device=out_THD.device)
        if piece.bias is None:
            later_RT = torch.arange(tokens, device=rows_R.device) > rows_R[:, None]
            bias = query_HTD.new_zeros(later_RT.shape).masked_fill_(later_RT, float("-inf"))
        else:
            bias = piece.bias[rows_R]
        out_THD[rows_R] = _dense(query_HTD[:, rows_R], parts, bias)


def _check_window(visible: int, kwargs: dict[str, Any]) -> None:
    window = kwargs.get("sliding_window")
    assert window is None or visible <= window, "the context is limited to the window"


def _tiles_pay(query_HTD: Tensor, context: int) -> bool:
    """Whether torch's kernel by tiles beats whole rows of scores: measured in float32 on a CPU."""
    return (
        query_HTD.device.type == "cpu"
        and query_HTD.dtype == torch.float32
        and query_HTD.shape[1] >= FEWEST_TILED_ROWS
        and context >= FEWEST_TILED_COLUMNS
    )


def _digest(query_HTD: Tensor, part: Part) -> Digest:
    """Attention over columns that all rows see."""
    keys, values = (t.unsqueeze(0) for t in part)
    folded = _folded(query_HTD, keys.shape[1]).unsqueeze(0)
    mixed, score = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
        folded, keys, values, scale=1.0
    )
    return mixed.reshape(*query_HTD.shape[:2], -1), score.reshape(query_HTD.shape[:2])


def _dense(
    query_HTD: Tensor,
    parts: list[Part],
    bias: Tensor | None,
    digests: Sequence[Digest] = (),
) -> Tensor:
    """Attention of T rows over columns, the query heads of a KV head folded into the rows.

    Args:
        parts: the columns; a base's and the slab's own are never joined.
        bias: (T, B), added to the scores of the last B columns.
        digests: of other columns. Each counts as one column more, with its own score and, for
            each row, its own value.

    Returns:
        (T, H, D).
    """
    heads, rows, _ = query_HTD.shape
    kv_heads = parts[0][0].shape[0]
    folded = _folded(query_HTD, kv_heads)
    seen = [torch.bmm(folded, keys.transpose(1, 2)) for keys, _ in parts]
    scores = seen[0] if len(seen) == 1 else torch.cat(seen, dim=-1)
    if bias is not None:
        scores.view(kv_heads, -1, rows, scores.shape[-1])[..., -bias.shape[1] :] += bias
    if digests:
        digested = [score.reshape(kv_heads, -1, 1) for _, score in digests]
        scores = torch.cat([*digested, scores], dim=-1)
    weights = torch.softmax(scores, dim=-1, dtype=torch.float32).to(query_HTD.dtype)
    weights_of = weights.split([1] * len(digests) + [keys.shape[1] for keys, _ in parts], dim=-1)
    of_digests, of_parts = weights_of[: len(digests)], weights_of[len(digests) :]
    mixed = torch.bmm(of_parts[0], parts[0][1])
    for weight, (_, values) in zip(of_parts[1:], parts[1:], strict=True):
        mixed = torch.baddbmm(mixed, weight, values)
    for weight, (value, _) in zip(of_digests, digests, strict=True):
        mixed.addcmul_(weight, value.reshape(mixed.shape))
    return mixed.view(heads, rows, mixed.shape[-1]).transpose(0, 1)


def _folded(query_HTD: Tensor, kv_heads: int) -> Tensor:
    """(kv heads, query heads of each times T, D)."""
    return query_HTD.reshape(kv_heads, -1, query_HTD.shape[-1])


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

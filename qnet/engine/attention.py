"""Attention over packed tokens: no padding, histories stored once, read as they lie.

A forward pass takes one row of tokens that belong to many conversations. Which tokens see which
is an `AttentionMetadata`: a list of segments, each with the KV buffer of its conversation. It
reaches this function through the model's keyword arguments, so any transformers trunk with
pluggable attention works.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, groupby
from typing import Any

import torch
from torch import Tensor, nn
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS, sdpa_mask
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from qnet.engine.kv_buffer import KVBuffer, Part

PACKED_ATTENTION = "qguide_packed"
_ROWS_AT_ONCE = {"cpu": 64}
_ROWS_ELSEWHERE = 256
FEWEST_TILED_ROWS = 32
FEWEST_TILED_COLUMNS = 256

PartialAttention = tuple[Tensor, Tensor]
"""Attention of T rows over some columns, (heads, T, head size), and the log of the sum of
their exponentiated scores, (heads, T)."""


Columns = tuple[range, ...]
"""Columns of a buffer, in order; no two ranges touch."""


@dataclass(frozen=True, slots=True)
class PackedSegment:
    """New tokens of one conversation, in one forward pass.

    Attributes:
        buffer: where the conversation's keys and values lie.
        token_ids: the new tokens.
        positions: their positions.
        column: their keys and values go here and after.
        seen: earlier columns that every token sees.
        bias: what hides the columns from `own` to the last new one, (tokens, columns), 0 or -inf,
            and -inf wherever a token would see a later one; None where the tokens see each other
            causally.
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


@dataclass(frozen=True, slots=True)
class Chunk:
    """Some rows of a segment, few enough that their scores stay small.

    Attributes:
        rows: how many.
        columns: those they may see beside the ones that all see.
        bias: (rows, B), what hides the last B of these.
    """

    rows: int
    columns: range
    bias: Tensor | None


@dataclass(frozen=True, slots=True)
class Group:
    """Neighbours in the packed row that see the same columns of the same buffer."""

    segments: list[PackedSegment]
    start: int

    @property
    def end(self) -> int:
        """Index after the group's last row."""
        return self.start + sum(len(segment.token_ids) for segment in self.segments)

    @property
    def read_rows(self) -> list[int]:
        """The rows that are read, counted from the group's first one; each once, in order."""
        starts = accumulate((len(segment.token_ids) for segment in self.segments), initial=0)
        return [
            start + row
            for start, segment in zip(starts, self.segments, strict=False)
            for row in sorted(set(segment.read))
        ]

    def chunks(self, like: Tensor, *, only_read: bool) -> list[Chunk]:
        """Its rows in chunks.

        Args:
            only_read: leave out the rows that nobody reads.
        """
        at_once = _ROWS_AT_ONCE.get(like.device.type, _ROWS_ELSEWHERE)
        found = []
        for segment in self.segments:
            rows = sorted(set(segment.read)) if only_read else list(range(len(segment.token_ids)))
            for start in range(0, len(rows), at_once):
                mine = rows[start : start + at_once]
                columns = segment.columns(mine[-1] + 1)
                found.append(Chunk(len(mine), columns, _hiding(segment, mine, len(columns), like)))
        return found


class AttentionMetadata:
    """The segments of one forward pass, in the order of their tokens.

    Args:
        last_layer: where only the tokens that are read look back; None lets all of them.
    """

    def __init__(self, segments: list[PackedSegment], *, last_layer: int | None = None) -> None:
        self.segments = segments
        self.last_layer = last_layer
        self.groups: list[Group] = []
        start = 0
        for _, alike in groupby(segments, key=lambda segment: (id(segment.buffer), segment.seen)):
            self.groups.append(Group(list(alike), start))
            start = self.groups[-1].end
        for segment in segments:
            segment.buffer.reserve(segment.columns().stop)
        self._chunks: dict[tuple[int, bool], list[Chunk]] = {}

    @property
    def spans(self) -> Iterator[tuple[PackedSegment, slice]]:
        """Each segment and the rows of the packed batch that are its tokens."""
        start = 0
        for segment in self.segments:
            yield segment, slice(start, start + len(segment.token_ids))
            start += len(segment.token_ids)

    @property
    def read_rows(self) -> list[int]:
        """The rows of the packed batch whose outputs are wanted."""
        return [rows.start + row for segment, rows in self.spans for row in segment.read]

    def chunks(self, group: Group, like: Tensor, *, only_read: bool) -> list[Chunk]:
        """The chunks of a group, made once for all layers."""
        key = (group.start, only_read)
        if key not in self._chunks:
            self._chunks[key] = group.chunks(like, only_read=only_read)
        return self._chunks[key]


def _hiding(segment: PackedSegment, rows: list[int], columns: int, like: Tensor) -> Tensor | None:
    """Bias, 0 or -inf, that hides some of the last columns from these rows."""
    if segment.bias is not None:
        return segment.bias[torch.tensor(rows, device=segment.bias.device), :columns]
    if len(rows) == 1:
        return None
    rows_R = torch.tensor(rows, device=like.device)
    columns_B = torch.arange(rows[0], rows[-1] + 1, device=like.device)
    later_RB = columns_B > rows_R[:, None]
    return like.new_zeros(later_RB.shape).masked_fill_(later_RB, float("-inf"))


def packed_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    metadata: AttentionMetadata | None = None,
    scaling: float | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """Attention of a packed row under `metadata`; without one, the stock SDPA attention.

    Args:
        query: (1, H, N, D); key and value: (1, Hkv, N, D), positions already applied.

    Returns:
        (1, N, H, D) and no weights.
    """
    if metadata is None:
        stock: tuple[Tensor, None] = sdpa_attention_forward(
            module, query, key, value, attention_mask, scaling=scaling, **kwargs
        )
        return stock
    _refuse_unknown(kwargs)
    layer = int(module.layer_idx)  # type: ignore[arg-type]
    query_HND = query[0] * (query.shape[-1] ** -0.5 if scaling is None else scaling)
    out_NHD = query.new_empty((query.shape[2], query.shape[1], value.shape[-1]))
    for segment, rows in metadata.spans:
        segment.buffer.write(layer, segment.column, key[0, :, rows], value[0, :, rows])
    for group in metadata.groups:
        rows = slice(group.start, group.end)
        out_NHD[rows] = _look_back(metadata, group, layer, query_HND[:, rows], value.shape[-1])
    return out_NHD.unsqueeze(0), None


def _look_back(
    metadata: AttentionMetadata, group: Group, layer: int, query_HTD: Tensor, value_size: int
) -> Tensor:
    """Attention of a group's rows, (T, H, D); in the last layer the unread ones become zeros."""
    read = group.read_rows if layer == metadata.last_layer else None
    if read is None or len(read) == query_HTD.shape[1]:
        chunks = metadata.chunks(group, query_HTD, only_read=False)
        return _attend(group, layer, query_HTD, chunks, value_size)
    rows_R = torch.tensor(read, dtype=torch.long, device=query_HTD.device)
    chunks = metadata.chunks(group, query_HTD, only_read=True)
    out_THD = query_HTD.new_zeros((query_HTD.shape[1], query_HTD.shape[0], value_size))
    out_THD[rows_R] = _attend(group, layer, query_HTD[:, rows_R], chunks, value_size)
    return out_THD


def _attend(
    group: Group, layer: int, query_HRD: Tensor, chunks: list[Chunk], value_size: int
) -> Tensor:
    """Attention of R rows of a group, (R, H, D), one chunk of rows after the other.

    Long ranges of columns that all rows see are attended to for all of them at once, by tiles,
    where that is faster.
    """
    # The kernel by tiles never writes whole rows of scores, which for a long history are what
    # attention spends its time on. It knows no mask but the causal one, so only columns that every
    # row sees go through it; it returns the log of the sum of their scores, and with that the whole
    # history enters the softmax over the remaining columns as one column more.
    buffer, seen = group.segments[0].buffer, group.segments[0].seen
    tiled = [c for c in seen if value_size == query_HRD.shape[-1] and _tiles_pay(query_HRD, c)]
    rest = tuple(columns for columns in seen if columns not in tiled)
    parts = [part for columns in tiled for part in buffer.seen(layer, columns)]
    partials = [_tiled_attention(query_HRD, part) for part in parts]
    out_RHD = query_HRD.new_empty((query_HRD.shape[1], query_HRD.shape[0], value_size))
    start = 0
    for chunk in chunks:
        rows = slice(start, start + chunk.rows)
        out_RHD[rows] = _dense(
            query_HRD[:, rows],
            [p for columns in joined(rest, chunk.columns) for p in buffer.seen(layer, columns)],
            chunk.bias,
            [(mixed[:, rows], score[:, rows]) for mixed, score in partials],
        )
        start = rows.stop
    return out_RHD


def _tiles_pay(query_HTD: Tensor, columns: range) -> bool:
    """True if torch's tiled kernel beats whole rows of scores, as measured in float32 on a CPU."""
    return (
        query_HTD.device.type == "cpu"
        and query_HTD.dtype == torch.float32
        and query_HTD.shape[1] >= FEWEST_TILED_ROWS
        and len(columns) >= FEWEST_TILED_COLUMNS
    )


def _tiled_attention(query_HTD: Tensor, part: Part) -> PartialAttention:
    """Attention over columns that all rows see, by torch's tiled kernel."""
    keys, values = (t.unsqueeze(0) for t in part)
    folded = _folded(query_HTD, keys.shape[1]).unsqueeze(0)
    mixed, score = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
        folded, keys, values, scale=1.0
    )
    return mixed.reshape(*query_HTD.shape[:2], -1), score.reshape(query_HTD.shape[:2])


def _dense(
    query_HTD: Tensor,
    parts: list[Part],
    bias_TB: Tensor | None,
    partials: Sequence[PartialAttention] = (),
) -> Tensor:
    """Attention of T rows over columns, the query heads of a KV head folded into the rows.

    Args:
        parts: the columns; a base's and the buffer's own are never joined.
        bias_TB: added to the scores of the last B columns.
        partials: of other columns. Each counts as one column more, with its own score and, for
            each row, its own value.

    Returns:
        (T, H, D).
    """
    heads, rows, _ = query_HTD.shape
    kv_heads = parts[0][0].shape[0]
    folded = _folded(query_HTD, kv_heads)
    seen = [torch.bmm(folded, keys.transpose(1, 2)) for keys, _ in parts]
    scores = seen[0] if len(seen) == 1 else torch.cat(seen, dim=-1)
    if bias_TB is not None:
        scores.view(kv_heads, -1, rows, scores.shape[-1])[..., -bias_TB.shape[1] :] += bias_TB
    if partials:
        partial_scores = [score.reshape(kv_heads, -1, 1) for _, score in partials]
        scores = torch.cat([*partial_scores, scores], dim=-1)
    weights = torch.softmax(scores, dim=-1, dtype=torch.float32).to(query_HTD.dtype)
    weights_of = weights.split([1] * len(partials) + [keys.shape[1] for keys, _ in parts], dim=-1)
    of_partials, of_parts = weights_of[: len(partials)], weights_of[len(partials) :]
    mixed = torch.bmm(of_parts[0], parts[0][1])
    for weight, (_, values) in zip(of_parts[1:], parts[1:], strict=True):
        mixed = torch.baddbmm(mixed, weight, values)
    for weight, (value, _) in zip(of_partials, partials, strict=True):
        mixed.addcmul_(weight, value.reshape(mixed.shape))
    return mixed.view(heads, rows, mixed.shape[-1]).transpose(0, 1)


def _folded(query_HTD: Tensor, kv_heads: int) -> Tensor:
    """The query heads of each KV head folded into the rows, (KV heads, H / KV heads * T, D)."""
    return query_HTD.reshape(kv_heads, -1, query_HTD.shape[-1])


def _refuse_unknown(kwargs: dict[str, Any]) -> None:
    for name in ("softcap", "s_aux", "position_bias"):
        if kwargs.get(name) is not None:
            raise NotImplementedError(f"packed attention knows no {name}")


def register() -> None:
    """Make the packed attention known to transformers; safe to call again."""
    ALL_ATTENTION_FUNCTIONS.register(PACKED_ATTENTION, packed_attention)
    ALL_MASK_ATTENTION_FUNCTIONS.register(PACKED_ATTENTION, sdpa_mask)

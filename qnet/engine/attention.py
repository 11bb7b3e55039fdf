"""Attention over packed tokens: no padding, histories stored once, read as they lie.

A forward pass takes one row of tokens that belong to many conversations. Which tokens see which is an
`AttentionMetadata`: a list of segments, each with the KV buffer of its conversation. It reaches this function through
the model's keyword arguments, so any transformers trunk with pluggable attention works.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import torch
from torch import Tensor, nn
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS, sdpa_mask
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from qguide.qnet.engine.fused_attention import Session, attend_sessions, sessions
from qguide.qnet.engine.kernels import Scoring, dense_attention, plain_attention, tiled_attention, upload
from qguide.qnet.engine.kv_buffer import Columns, KVBuffer, PackedSegment, joined, read_rows, spans_of
from qguide.qnet.engine.stacks import StackedRows, attend_beginnings, begun_rows
from qguide.qnet.engine.windows import WindowView, hide_behind, view

PACKED_ATTENTION = "qguide_packed"
# Rows of scores in memory at once: few on a CPU, whose cache they should fit.
_ROWS_AT_ONCE = {"cpu": 64}
_ROWS_ELSEWHERE = 256
CHUNKED_ON = {"cpu"}
"""Devices whose attention is computed chunk by chunk throughout; see `fused_attention`."""
FEWEST_TILED_ROWS = 32
FEWEST_TILED_COLUMNS = 256


@dataclass(frozen=True, slots=True)
class Chunk:
    """Some rows of a segment, few enough that their scores stay small.

    Attributes:
        columns: those they may see beside the ones that all see.
        bias: (rows, B), what hides the last B of these, or of `partly` and these.
        partly: columns before, which some of the group's rows see.
    """

    rows: int
    columns: range
    bias: Tensor | None
    partly: Columns = ()


@dataclass(frozen=True, slots=True)
class SegmentGroup:
    """Neighbours in the packed row that see the same columns of the same buffer."""

    segments: list[PackedSegment]
    start: int

    @property
    def end(self) -> int:
        """Index after the group's last row."""
        return self.start + sum(len(segment.token_ids) for segment in self.segments)

    @property
    def positions(self) -> list[int]:
        """Positions of its tokens."""
        return [position for segment in self.segments for position in segment.positions]

    def chunks(self, like: Tensor, *, only_read: bool, window: int | None, partly: Columns) -> list[Chunk]:
        """Its rows in chunks.

        Args:
            only_read: leave out the rows whose outputs are not read.
            window: hide what is so far from a row.
            partly: columns before its own that lie behind some rows' windows.
        """
        at_once = _ROWS_AT_ONCE.get(like.device.type, _ROWS_ELSEWHERE)
        found = []
        for segment in self.segments:
            rows = sorted(set(segment.read)) if only_read else list(range(len(segment.token_ids)))
            for start in range(0, len(rows), at_once):
                mine = rows[start : start + at_once]
                columns = segment.columns(mine[-1] + 1)
                bias = _hiding(segment, mine, len(columns), like)
                if window is not None:
                    bias = hide_behind(
                        segment.buffer,
                        (*partly, columns),
                        [segment.positions[row] for row in mine],
                        window,
                        bias_RB=bias,
                        like=like,
                    )
                found.append(Chunk(len(mine), columns, bias, partly))
        return found


class AttentionMetadata:
    """The segments of one forward pass, in the order of their tokens.

    Args:
        last_layer: where only the tokens that are read look back; None lets all of them.
        window: the longest that a layer's window may be, for trunks that have any; 0 for others,
            and for those whose windows are longer than their context.

    Attributes:
        groups: segments that see the same columns of a buffer that is in no stack.
        written: those segments, and their rows of the packed row.
    """

    def __init__(self, segments: list[PackedSegment], *, last_layer: int | None = None, window: int = 0) -> None:
        self.segments = segments
        self.last_layer = last_layer
        self.window = window
        self.groups: list[SegmentGroup] = []
        self.stacked: list[StackedRows] = []
        start = 0
        # Neighbours alone, because a group is one slice of the packed row. Candidates of one state
        # stand beside each other, so their history is read once for all of them.
        for _, neighbours in groupby(segments, key=_read_at_once):
            alike = list(neighbours)
            if (stack := alike[0].buffer.stack) is not None:
                self.stacked.append(StackedRows(stack, alike, start))
                start = self.stacked[-1].rows.stop
                continue
            self.groups.append(SegmentGroup(alike, start))
            start = self.groups[-1].end
            self._make_room(alike)
        self.begun = begun_rows(self.spans) if self.stacked else []
        self.written = [(segment, rows) for segment, rows in self.spans if segment.buffer.stack is None]
        self._sessions: list[Session] = []
        self._chunks: dict[tuple[int, bool, int | None], list[Chunk]] = {}
        self._views: dict[tuple[int, int | None], WindowView] = {}

    def _make_room(self, segments: Sequence[PackedSegment]) -> None:
        for segment in segments:
            segment.buffer.reserve(segment.columns().stop)
            if self.window:
                segment.buffer.place(segment.column, segment.positions)

    @property
    def spans(self) -> Iterator[tuple[PackedSegment, slice]]:
        """Each segment and the rows of the packed batch that are its tokens."""
        return spans_of(self.segments)

    @property
    def read_rows(self) -> list[int]:
        """The rows of the packed batch whose outputs are wanted."""
        return [rows.start + row for segment, rows in self.spans for row in segment.read]

    def view(self, group: SegmentGroup, window: int | None) -> tuple[WindowView, int | None]:
        """Earlier columns that a group's rows see, and the window if it hides any from them."""
        buffer, seen = group.segments[0].buffer, group.segments[0].seen
        # No row stands a whole window behind the first token, so the window hides nothing yet.
        if window is None or not self.window or max(group.positions) < window:
            return WindowView(seen), None
        key = (group.start, window)
        if key not in self._views:
            self._views[key] = view(buffer, seen, group.positions, window)
        return self._views[key], window

    def sessions(self, device: torch.device, window: int | None) -> list[Session]:
        """Parts for one kernel each; none where chunks are faster, or a window hides any."""
        if device.type in CHUNKED_ON or (
            window is not None and any(self.view(group, window)[1] for group in self.groups)
        ):
            return []
        if not self._sessions:
            self._sessions = sessions(self.segments)
        return self._sessions

    def chunks(
        self, group: SegmentGroup, like: Tensor, *, only_read: bool, window: int | None = None, partly: Columns = ()
    ) -> list[Chunk]:
        """The chunks of a group, made once for all layers with the same window."""
        key = (group.start, only_read, window)
        if key not in self._chunks:
            self._chunks[key] = group.chunks(like, only_read=only_read, window=window, partly=partly)
        return self._chunks[key]


def _read_at_once(segment: PackedSegment) -> tuple[int, Columns]:
    """Equal for neighbours whose attention is one group, or one stack's."""
    stack = segment.buffer.stack
    return (id(segment.buffer), segment.seen) if stack is None else (id(stack), ())


def _hiding(segment: PackedSegment, rows: list[int], columns: int, like: Tensor) -> Tensor | None:
    """Bias, 0 or -inf, that hides some of the last columns from these rows."""
    if segment.bias is not None:
        return segment.bias[upload(rows, segment.bias.device), :columns]
    # Its columns end at itself, so there is no later one to hide.
    if len(rows) == 1:
        return None
    rows_R = upload(rows, like.device)
    # From the first of these rows on: all of them see what lies before it.
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
    if kwargs.get("position_bias") is not None:
        raise NotImplementedError("packed attention knows no position_bias")
    softcap, sinks_H = kwargs.get("softcap"), kwargs.get("s_aux")
    if metadata is None:
        if softcap is not None or sinks_H is not None:
            return plain_attention(query, key, value, attention_mask, scaling, softcap, sinks_H)
        stock: tuple[Tensor, None] = sdpa_attention_forward(
            module, query, key, value, attention_mask, scaling=scaling, **kwargs
        )
        return stock
    window = kwargs.get("sliding_window")
    if window is not None and metadata.window:
        window = min(int(window), metadata.window)
    scoring = Scoring(window, softcap, sinks_H)
    layer = int(module.layer_idx)  # type: ignore[arg-type]
    plain = softcap is None and sinks_H is None
    if plain and (alone := metadata.sessions(query.device, scoring.window)):
        only_read = layer == metadata.last_layer
        states = (query[0], key[0], value[0])
        return attend_sessions(alone, layer, states, scaling, only_read=only_read), None
    # Queries are scaled in place of scores: N x D products, not N x columns.
    query_HND = query[0] * (query.shape[-1] ** -0.5 if scaling is None else scaling)
    out_NHD = query.new_empty((query.shape[2], query.shape[1], value.shape[-1]))
    # All write before any looks back: a segment may see columns that another one fills here.
    for segment, rows in metadata.written:
        segment.buffer.write(layer, segment.column, key[0, :, rows], value[0, :, rows])
    beginnings = None
    if metadata.begun:
        beginnings = attend_beginnings(metadata.begun, layer, query_HND, value.shape[-1], scoring)
    for stacked in metadata.stacked:
        states = (query_HND[:, stacked.rows], key[0, :, stacked.rows], value[0, :, stacked.rows])
        mine = None if beginnings is None else (beginnings[0][stacked.rows], beginnings[1][stacked.rows])
        out_NHD[stacked.rows] = stacked.attend(layer, states, scoring, mine)
    for group in metadata.groups:
        rows = slice(group.start, group.end)
        out_NHD[rows] = _look_back(metadata, group, layer, query_HND[:, rows], value.shape[-1], scoring)
    return out_NHD.unsqueeze(0), None


def _look_back(
    metadata: AttentionMetadata, group: SegmentGroup, layer: int, query_HTD: Tensor, value_size: int, scoring: Scoring
) -> Tensor:
    """Attention of a group's rows, (T, H, D); in the last layer the unread ones become zeros."""
    seen, window = metadata.view(group, scoring.window)
    read = read_rows(group.segments) if layer == metadata.last_layer else None
    # Where all are read, picking them would only be a copy.
    if read is not None and len(read) == query_HTD.shape[1]:
        read = None
    chunks = metadata.chunks(group, query_HTD, only_read=read is not None, window=window, partly=seen.partly)
    buffer = group.segments[0].buffer
    if read is None:
        return _attend(buffer, layer, query_HTD, chunks, seen.whole, value_size, scoring)
    rows_R = upload(read, query_HTD.device, dtype=torch.long)
    # Nothing comes after the last layer that could read the others' outputs, so zeros will do.
    out_THD = query_HTD.new_zeros((query_HTD.shape[1], query_HTD.shape[0], value_size))
    out_THD[rows_R] = _attend(buffer, layer, query_HTD[:, rows_R], chunks, seen.whole, value_size, scoring)
    return out_THD


def _attend(
    buffer: KVBuffer,
    layer: int,
    query_HRD: Tensor,
    chunks: list[Chunk],
    seen: Columns,
    value_size: int,
    scoring: Scoring,
) -> Tensor:
    """Attention of R rows of a group, (R, H, D), one chunk of rows after the other.

    Long ranges of columns that all rows see are attended to for all of them at once, by tiles, where that is faster.
    """
    # The kernel by tiles never writes whole rows of scores, which for a long history are what
    # attention spends its time on. It knows no mask but the causal one, so only columns that every
    # row sees go through it; it returns the log of the sum of their scores, and with that the whole
    # history enters the softmax over the remaining columns as one column more.
    fits = value_size == query_HRD.shape[-1] and scoring.softcap is None
    tiled = [c for c in seen if fits and _tiles_pay(query_HRD, c)]
    rest = tuple(columns for columns in seen if columns not in tiled)
    parts = [part for columns in tiled for part in buffer.seen(layer, columns)]
    partials = [tiled_attention(query_HRD, part) for part in parts]
    out_RHD = query_HRD.new_empty((query_HRD.shape[1], query_HRD.shape[0], value_size))
    start = 0
    for chunk in chunks:
        rows = slice(start, start + chunk.rows)
        columns = joined((*rest, *chunk.partly), chunk.columns)
        out_RHD[rows] = dense_attention(
            query_HRD[:, rows],
            [part for some in columns for part in buffer.seen(layer, some)],
            chunk.bias,
            [(mixed[:, rows], score[:, rows]) for mixed, score in partials],
            scoring,
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


def register() -> None:
    """Make the packed attention known to transformers; safe to call again."""
    # cuDNN's attention is planned anew for every length, which takes 70 ms on an H200, and no two
    # steps are of one length.
    torch.backends.cuda.enable_cudnn_sdp(False)
    ALL_ATTENTION_FUNCTIONS.register(PACKED_ATTENTION, packed_attention)
    ALL_MASK_ATTENTION_FUNCTIONS.register(PACKED_ATTENTION, sdpa_mask)

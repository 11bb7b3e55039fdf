"""Attention of a conversation's new tokens by one kernel, where launching kernels takes longest.

A GPU runs a kernel over a few hundred tokens in less time than a host needs to launch it. So what
`attention` computes chunk by chunk on a CPU, whose caches that suits, is one call of torch's
attention here: over all columns, under one mask that is made once for all layers.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import inf

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from qguide.qnet.engine.kernels import upload
from qguide.qnet.engine.kv_buffer import PackedSegment, read_rows, spans_of

_ALIGNED = 8  # columns of which a mask's rows are multiples, as the kernels want it in 16-bit types


@dataclass(slots=True)
class Session:
    """Neighbours in the packed row whose new tokens lie in one buffer, column after column."""

    segments: list[PackedSegment]
    start: int
    _bias_TC: Tensor | None = field(default=None, init=False)
    _read_R: Tensor | None = field(default=None, init=False)

    @property
    def rows(self) -> slice:
        """Its rows in the packed row."""
        return slice(self.start, self.start + self._tokens)

    @property
    def _tokens(self) -> int:
        return sum(len(segment.token_ids) for segment in self.segments)

    def write(self, layer: int, key_HTD: Tensor, value_HTD: Tensor) -> None:
        """Write a layer's new keys and values to the buffer."""
        first = self.segments[0]
        first.buffer.write(layer, first.column, key_HTD, value_HTD)

    def attend(self, layer: int, query_HTD: Tensor, *, scale: float | None, only_read: bool) -> Tensor:
        """Attention of its rows, (T, H, D); with `only_read` of those that are read, and zeros for the others."""
        heads, tokens, _ = query_HTD.shape
        keys_KCD, values_KCD = self._columns(layer)
        read = self._read(query_HTD.device) if only_read else None
        if read is not None:
            query_HTD = query_HTD[:, read]
        kv_heads, columns, _ = keys_KCD.shape
        # The query heads of a KV head are a batch's heads, and see the same keys without a copy.
        query_KGTD = query_HTD.unflatten(0, (kv_heads, -1))
        group = query_KGTD.shape[1]
        # Without a mask the kernel skips what is to the right of the diagonal.
        first_pass = self._is_causal() and columns == tokens and read is None
        mixed_KGTD = scaled_dot_product_attention(
            query_KGTD,
            keys_KCD[:, None].expand(-1, group, -1, -1),
            values_KCD[:, None].expand(-1, group, -1, -1),
            attn_mask=None if first_pass else self._mask(query_HTD, columns, read),
            is_causal=first_pass,
            scale=scale,
        )
        out_THD = mixed_KGTD.flatten(0, 1).transpose(0, 1)
        if read is None:
            return out_THD
        whole_THD = out_THD.new_zeros((tokens, heads, out_THD.shape[-1]))
        whole_THD[read] = out_THD
        return whole_THD

    def _columns(self, layer: int) -> tuple[Tensor, Tensor]:
        last = self.segments[-1]
        columns = range(last.column + len(last.token_ids))
        parts = self.segments[0].buffer.seen(layer, columns)
        if len(parts) == 1:
            return parts[0]
        keys, values = zip(*parts, strict=True)
        return torch.cat(keys, dim=1), torch.cat(values, dim=1)

    def _read(self, device: torch.device) -> Tensor:
        if self._read_R is None:
            self._read_R = upload(read_rows(self.segments), device, dtype=torch.long)
        return self._read_R

    def _mask(self, like: Tensor, columns: int, read_R: Tensor | None) -> Tensor | None:
        if self._tokens == 1 and self._is_causal():
            return None
        if self._bias_TC is None:
            self._bias_TC = _bias(list(spans_of(self.segments)), columns, like)
        bias_RC = self._bias_TC if read_R is None else self._bias_TC[read_R]
        return bias_RC[:, :columns]

    def _is_causal(self) -> bool:
        """True if every token sees all columns up to its own."""
        first, *others = self.segments
        before = range(first.column)
        seen = first.seen == ((before,) if before else ())
        return not others and first.bias is None and seen


def sessions(segments: Sequence[PackedSegment]) -> list[Session]:
    """The segments of a packed row by session, in order."""
    found: list[Session] = []
    row = column = 0
    for segment in segments:
        last = found[-1].segments[-1] if found else None
        if last is not None and last.buffer is segment.buffer and segment.column == column:
            found[-1].segments.append(segment)
        else:
            found.append(Session([segment], row))
        row += len(segment.token_ids)
        column = segment.column + len(segment.token_ids)
    return found


def attend_sessions(
    found: Sequence[Session], layer: int, states: tuple[Tensor, Tensor, Tensor], scale: float | None, *, only_read: bool
) -> Tensor:
    """Attention of a packed row, (1, N, H, D), of queries (H, N, D) to keys and values (Hkv, N, D)."""
    query_HND, key_HND, value_HND = states
    # All write before any looks back: one may see columns that another one fills here.
    for session in found:
        session.write(layer, key_HND[:, session.rows], value_HND[:, session.rows])
    out = [session.attend(layer, query_HND[:, session.rows], scale=scale, only_read=only_read) for session in found]
    return (out[0] if len(out) == 1 else torch.cat(out)).unsqueeze(0)


def _bias(spans: list[tuple[PackedSegment, slice]], columns: int, like: Tensor) -> Tensor:
    """0 or -inf, (rows, columns and a few more for alignment): what each row does not see."""
    rows = spans[-1][1].stop
    # What all rows see is left out of what the host makes and sends: a history may be long.
    every = min(one.seen[0].stop if one.seen and one.seen[0].start == 0 else 0 for one, _ in spans)
    hidden_TC = torch.ones((rows, columns - every), dtype=torch.bool)
    for segment, span in spans:
        for seen in segment.seen:
            hidden_TC[span, max(seen.start - every, 0) : max(seen.stop - every, 0)] = False
        own = _own_columns(segment, every)
        causal = torch.ones((len(segment.token_ids), own.stop - own.start), dtype=torch.bool)
        hidden_TC[span, own] = causal.triu_(1) if segment.bias is None else False
    bias_TC = like.new_zeros((rows, -(-columns // _ALIGNED) * _ALIGNED))
    bias_TC[:, every:columns].masked_fill_(upload(hidden_TC, like.device), -inf)
    for segment, span in spans:
        if segment.bias is not None:
            bias_TC[span, _own_columns(segment, 0)] = segment.bias
    return bias_TC


def _own_columns(segment: PackedSegment, start: int) -> slice:
    """The columns that its tokens do not all see, counted from `start`."""
    own = segment.columns()
    return slice(own.start - start, own.stop - start)

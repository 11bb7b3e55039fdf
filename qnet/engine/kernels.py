"""Kernels: attention over columns as they lie in KV buffers, linear layers on a CPU, what is read of the last layer.

In float32 torch multiplies by MKL, which does not use AVX-512 on every CPU that has it: on one of
AMD's oneDNN, which torch takes for bfloat16, was twice as fast. It is asked for directly where it
wins, with the same weights and no second copy of them. They lie turned, one input after the other,
as oneDNN reads them; shape and values are as before, and so is training.

After the last layer's keys and values, a token whose output is not read affects no result. A module
that works on each token alone (queries, output projection, MLP) can therefore be given the read
rows only, and its output be put back among zeros.
"""

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from math import inf
from typing import Any, Final

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

_FEWEST_ROWS: Final = 2  # of one, MKL is as fast: reading the weights is what takes time
_ROWS_OF_BLOCK: Final = 192
_FEWEST_IN_BLOCKS: Final = 128
_COLUMNS_AT_ONCE: Final = 32
_FEWEST_WEIGHTS: Final = 2**17
_FASTER: Final = 1.2
_FASTER_TURNED: Final = 1.15
_ROUNDS: Final = 3
_OF_ATTENTION = ("q_proj", "o_proj", "out_proj", "dense")
_OF_LAYER = ("mlp", "shared_mlp", "feed_forward")

Part = tuple[Tensor, Tensor]
"""Keys and values of some columns, each (heads, columns, head size)."""

PartialAttention = tuple[Tensor, Tensor]
"""Attention of T rows over some columns, (heads, T, head size), and the log of the sum of
their exponentiated scores, (heads, T)."""

Numbers = Tensor | Sequence[int] | Sequence[float] | Sequence[Sequence[int]]


@dataclass(frozen=True, slots=True)
class Scoring:
    """Attributes of a layer's attention beside what its rows see.

    Attributes:
        window: positions that a token sees, its own included; None is all of them.
        softcap: scores are squashed between minus and plus this.
        sinks_H: score of each head's sink, a column without a value.
    """

    window: int | None = None
    softcap: float | None = None
    sinks_H: Tensor | None = None


def tiled_attention(query_HTD: Tensor, part: Part) -> PartialAttention:
    """Attention over columns that all rows see, by torch's tiled kernel or by blocks of rows."""
    folded_KRD = _folded(query_HTD, len(part[0]))
    enough = folded_KRD.shape[1] >= _FEWEST_IN_BLOCKS and query_HTD.dtype == torch.float32
    if enough and one_dnn_is_faster():
        # The kernel multiplies in MKL. In oneDNN a block's scores still fit the core's cache.
        heads = zip(folded_KRD, *part, strict=True)
        blocks = [_attend_block(rows, k, v) for of_head, k, v in heads for rows in of_head.split(_ROWS_OF_BLOCK)]
        mixed_RD, score_R = (torch.cat(found) for found in zip(*blocks, strict=True))
        return mixed_RD.view(*query_HTD.shape[:2], -1), score_R.view(query_HTD.shape[:2])
    keys, values = (t.unsqueeze(0) for t in part)
    folded = folded_KRD.unsqueeze(0)
    mixed, score = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(folded, keys, values, scale=1.0)
    return mixed.reshape(*query_HTD.shape[:2], -1), score.reshape(query_HTD.shape[:2])


def _attend_block(query_RD: Tensor, key_CD: Tensor, value_CD: Tensor) -> PartialAttention:
    """Attention of some rows over all columns, (R, D), and the log of the sum, (R)."""
    scores_RC = _multiply(query_RD, key_CD, None)
    weights_RC = torch.softmax(scores_RC, dim=-1)
    return _multiply(weights_RC, value_CD.T, None), _log_sum(scores_RC, weights_RC)


def partial_attention(query_XRD: Tensor, part: Part, bias_K1C: Tensor, scoring: Scoring) -> PartialAttention:
    """Attention of R rows of each head over columns that they all see.

    Args:
        part: values as everywhere, keys transposed, (KV heads, head size, columns).
        bias_K1C: hides columns, 0 or -inf.
    """
    keys_KDC, values_KCD = part
    folded = _folded(query_XRD, len(keys_KDC))
    if scoring.softcap is None:
        scores = torch.baddbmm(bias_K1C, folded, keys_KDC)
    else:
        scores = torch.tanh(torch.bmm(folded, keys_KDC) / scoring.softcap) * scoring.softcap + bias_K1C
    weights = torch.softmax(scores, dim=-1)
    log_sum = _log_sum(scores, weights).view(query_XRD.shape[:2])
    return torch.bmm(weights, values_KCD).view(*query_XRD.shape[:2], -1), log_sum


def _log_sum(scores: Tensor, weights: Tensor) -> Tensor:
    """The log of the sum of each row's exponentiated scores, whose softmax the weights are."""
    # A softmax is exp(score - log(sum)), so its highest weight tells the sum.
    return scores.amax(dim=-1) - weights.amax(dim=-1).log()


def dense_attention(
    query_HTD: Tensor, parts: list[Part], bias_TB: Tensor | None, partials: Sequence[PartialAttention], scoring: Scoring
) -> Tensor:
    """Attention of T rows over columns, the query heads of a KV head folded into the rows.

    Args:
        parts: the columns; a base's and the buffer's own lie apart. In half precision on a CPU they are copied.
        bias_TB: added to the scores of the last B columns; or one for each KV head, (KV heads, 1, T, B).
        partials: of other columns. Each counts as one column more, with its own score and, for each row, its own value.

    Returns:
        (T, H, D).
    """
    heads, rows, _ = query_HTD.shape
    kv_heads = parts[0][0].shape[0]
    folded = _folded(query_HTD, kv_heads)
    columns = sum(keys.shape[1] for keys, _ in parts)
    if query_HTD.is_cpu and query_HTD.element_size() < 4:
        parts = [_joined(parts, padding=-columns % _COLUMNS_AT_ONCE)]
    seen = [torch.bmm(folded, keys.transpose(1, 2)) for keys, _ in parts]
    scores = seen[0] if len(seen) == 1 else torch.cat(seen, dim=-1)
    if scoring.softcap is not None:
        scores = torch.tanh(scores / scoring.softcap) * scoring.softcap
    if bias_TB is not None:
        biased = slice(columns - bias_TB.shape[-1], columns)
        scores.view(kv_heads, -1, rows, scores.shape[-1])[..., biased] += bias_TB
    if columns < scores.shape[-1]:
        scores[..., columns:] = -inf
    # Columns attended to elsewhere enter as one with the score log(sum(exp(scores))): its softmax
    # weight is their sum of weights, and its value is their mean. The result is exact.
    if partials:
        partial_scores = [score.reshape(kv_heads, -1, 1) for _, score in partials]
        scores = torch.cat([*partial_scores, scores], dim=-1)
    if scoring.sinks_H is not None:
        sinks = scoring.sinks_H.view(kv_heads, -1, 1).repeat_interleave(rows, dim=1)
        scores = torch.cat([scores, sinks.to(scores.dtype)], dim=-1)
    # In bfloat16, too, torch adds up in float32.
    weights = torch.softmax(scores, dim=-1, out=scores)
    if scoring.sinks_H is not None:
        # A sink takes its share of the weight and has no value to give.
        weights = weights[..., :-1]
    weights_of = weights.split([1] * len(partials) + [keys.shape[1] for keys, _ in parts], dim=-1)
    of_partials, of_parts = weights_of[: len(partials)], weights_of[len(partials) :]
    mixed = torch.bmm(of_parts[0], parts[0][1])
    for weight, (_, values) in zip(of_parts[1:], parts[1:], strict=True):
        mixed = torch.baddbmm(mixed, weight, values)
    for weight, (value, _) in zip(of_partials, partials, strict=True):
        mixed.addcmul_(weight, value.reshape(mixed.shape))
    return mixed.view(heads, rows, mixed.shape[-1]).transpose(0, 1)


def _joined(parts: list[Part], *, padding: int) -> Part:
    """The parts as one, and some columns of zeros."""
    # oneDNN, which multiplies in half precision, would copy heads that lie apart itself, in a slower way, and takes
    # 0.2 ms to prepare for a size that is new to it. The softmax is slower where a row ends within a vector, too.
    zeros_HCD = [kind[0].new_zeros((len(kind[0]), padding, kind[0].shape[-1])) for kind in zip(*parts, strict=True)]
    keys, values = (torch.cat(kind, dim=1) for kind in zip(*parts, zeros_HCD, strict=True))
    return keys, values


def _folded(query_HTD: Tensor, kv_heads: int) -> Tensor:
    """The query heads of each KV head folded into the rows, (KV heads, H / KV heads * T, D)."""
    # Grouped-query attention without repeating keys: rows of queries cost nothing more than rows.
    return query_HTD.reshape(kv_heads, -1, query_HTD.shape[-1])


def plain_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    scaling: float | None,
    softcap: float | None,
    sinks_H: Tensor | None,
) -> tuple[Tensor, None]:
    """Attention of ordinary batches, (B, T, H, D), with softcap or sinks, which torch's kernels do not know.

    Args:
        mask: true or 0 where a token sees another; None is causal.
    """
    repeats = query.shape[1] // key.shape[1]
    key, value = (t.repeat_interleave(repeats, dim=1) for t in (key, value))
    scores = query @ key.transpose(2, 3) * (query.shape[-1] ** -0.5 if scaling is None else scaling)
    if softcap is not None:
        scores = torch.tanh(scores / softcap) * softcap
    if mask is None:
        mask = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).tril()
    scores = scores.masked_fill(~mask, torch.finfo(scores.dtype).min) if mask.dtype == torch.bool else scores + mask
    if sinks_H is not None:
        sinks = sinks_H.to(scores.dtype).view(1, -1, 1, 1).expand(*scores.shape[:-1], 1)
        scores = torch.cat([scores, sinks], dim=-1)
    weights = torch.softmax(scores, dim=-1, dtype=torch.float32).to(query.dtype)
    mixed = weights[..., : key.shape[2]] @ value
    return mixed.transpose(1, 2), None


class OneDnnLinear(nn.Linear):
    """A linear layer whose passes without gradients run in oneDNN."""

    def forward(self, input: Tensor) -> Tensor:
        """Outputs (…, N) of inputs (…, K)."""
        few = input.numel() < _FEWEST_ROWS * self.in_features
        if few or input.dtype != torch.float32 or self.weight.dtype != torch.float32 or torch.is_grad_enabled():
            return F.linear(input, self.weight, self.bias)
        return _multiply(input, self.weight, self.bias)


def speed_up_linear_layers(model: nn.Module) -> None:
    """Let a model's linear layers run in oneDNN, if they are on a CPU where it is faster."""
    # A head's weights may be those of an embedding, which reads them row by row.
    others = [module for module in model.modules() if type(module) is not nn.Linear]
    read_elsewhere = {id(weight) for module in others for weight in module.parameters(recurse=False)}
    for module in model.modules():
        # Not subclasses, whose forward is their own.
        large = type(module) is nn.Linear and module.weight.numel() >= _FEWEST_WEIGHTS
        if large and module.weight.device.type == "cpu" and one_dnn_is_faster_on_turned():
            module.__class__ = OneDnnLinear
            if module.weight.dtype == torch.float32 and id(module.weight) not in read_elsewhere:
                module.weight.data = _turned(module.weight.data)


@cache
def one_dnn_is_faster() -> bool:
    """True if a product of what lies in the core's cache takes oneDNN clearly less time, as attention's do."""
    weights = [torch.ones(512, 512)] * 8  # drawn ones would move every seed
    return _one_dnn_wins(weights, weights, by=_FASTER)


@cache
def one_dnn_is_faster_on_turned() -> bool:
    """True if a product with turned weights, which come from memory as a model's do, takes oneDNN less time."""
    weights = [torch.ones(1408, 512) for _ in range(16)]
    return _one_dnn_wins([_turned(weight) for weight in weights], weights, by=_FASTER_TURNED)


def _one_dnn_wins(weights: list[Tensor], of_mkl: list[Tensor], *, by: float) -> bool:
    if not torch.backends.mkldnn.is_available():
        return False
    input = torch.ones(64, 512)
    # In turns, so that a machine that is busy for a while slows both.
    pairs = [pair for _ in range(_ROUNDS) for pair in zip(weights, of_mkl, strict=True)]
    times = [(_seconds(_multiply, input, mine, None), _seconds(F.linear, input, other)) for mine, other in pairs]
    return by * min(ours for ours, _ in times) < min(mkls for _, mkls in times)


def _turned(weight: Tensor) -> Tensor:
    return weight.t().contiguous().t()


def _multiply(input: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    found: Tensor = torch.ops.mkldnn._linear_pointwise(input, weight, bias, "none", [], "")
    return found


@torch.inference_mode()
def _seconds(run: Callable[..., Tensor], *arguments: Tensor | None) -> float:
    began = time.thread_time()
    run(*arguments)
    return time.thread_time() - began


class _Read(threading.local):
    """Rows at which this thread's forward pass is read; None lets every token through."""

    rows: Tensor | None = None
    tokens: int = 0


class LastLayerPruning:
    """Hooks on the token-wise modules of a trunk's last layer, active within `to`.

    A trunk may serve several threads at once (a Q model and its shadow): each prunes its own forward passes.
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


def upload(numbers: Numbers, device: torch.device, *, dtype: torch.dtype | None = None) -> Tensor:
    """A tensor of these numbers on a device, for which the host does not wait."""
    # `torch.tensor(…, device=…)` and an index that is a list wait until the device has run all that
    # was launched before them. What is copied from pinned memory takes its turn.
    made = numbers if isinstance(numbers, Tensor) else torch.tensor(numbers, dtype=dtype)
    if device.type == "cuda" and made.is_cpu:
        made = made.pin_memory()
    return made.to(device, dtype, non_blocking=True)

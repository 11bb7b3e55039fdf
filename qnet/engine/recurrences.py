"""Recurrences of hybrids on a CPU, in chunks of what is read.

They run in transformers' reference code where no kernels are installed, so on every CPU. It fills
each pass up to whole chunks, of 64 tokens or 256, where a candidate has a dozen. The functions here
compute the same in chunks that are no longer than what is read.

Letters of shapes: B rows, T tokens, C channels, H heads, K keys' and V values' size, N a state's.
"""

import inspect
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import Any, Final

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import PreTrainedModel
from transformers.activations import ACT2FN

from qguide.qnet.engine.branch_rows import this_thread

_CHUNK: Final = 32
_KIMI_CHUNK: Final = 16


def causal_convolution(
    hidden_states: Tensor, weight: Tensor, bias: Tensor | None = None, activation: str | None = None, **_: Any
) -> Tensor:
    """Depthwise convolution, (B, C, T), of each token and the K - 1 before it, by weights (C, K) and a bias (C)."""
    taps, tokens = weight.shape[-1], hidden_states.shape[-1]
    # Channels last, as the linear layers around it have them: sums of rows, and no transposition.
    padded_BTC = F.pad(hidden_states.transpose(1, 2), (0, 0, taps - 1, 0)).to(weight.dtype)
    mixed_BTC = padded_BTC[:, :tokens] * weight[:, 0]
    for tap in range(1, taps):
        mixed_BTC.addcmul_(padded_BTC[:, tap : tap + tokens], weight[:, tap])
    if bias is not None:
        mixed_BTC = mixed_BTC + bias
    if activation is not None:
        mixed_BTC = ACT2FN[activation](mixed_BTC)
    return mixed_BTC.to(hidden_states.dtype).transpose(1, 2)


def delta_rule(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    g: Tensor,
    beta: Tensor,
    initial_state: Tensor | None = None,
    output_final_state: bool = False,
    use_qk_l2norm_in_kernel: bool = False,
    **_: Any,
) -> tuple[Tensor, Tensor | None]:
    """Gated delta rule: S_t = exp(g_t) S_(t-1) + k_t beta_t (v_t - k_t exp(g_t) S_(t-1)).

    Args:
        query: (B, T, Hk, K), and key; value is (B, T, H, V), H a multiple of Hk.
        g: (B, T, H) logs of decays, and beta.
        initial_state: (B, H, K, V).

    Returns:
        (B, T, H, V) products of queries and states, and the last state.
    """
    query_BHTK, key_BHTK, value_BHTV = (x.transpose(1, 2).float() for x in (query, key, value))
    if use_qk_l2norm_in_kernel:
        query_BHTK, key_BHTK = _normalized(query_BHTK), _normalized(key_BHTK)
    groups = value_BHTV.shape[1] // key_BHTK.shape[1]
    both_BHTK = torch.stack([query_BHTK * query.shape[-1] ** -0.5, key_BHTK])
    both_BHTK = both_BHTK.repeat_interleave(groups, dim=2)
    gates_BHT1 = torch.stack([g, beta]).transpose(2, 3).float()[..., None]
    state_BHKV = None if initial_state is None else initial_state.float()
    found = []
    for (query_c, key_c), value_c, (decay_c, beta_c) in zip(
        both_BHTK.split(_CHUNK, dim=3), value_BHTV.split(_CHUNK, dim=2), gates_BHT1.split(_CHUNK, dim=3), strict=True
    ):
        within_TT, since_T1, until_T1 = _decays(decay_c)
        keys_KT = key_c.transpose(-1, -2)
        wanted_TV = beta_c * value_c
        if state_BHKV is not None:
            wanted_TV = wanted_TV - (key_c @ state_BHKV) * (beta_c * since_T1)
        # What each token writes depends on what those before it in the chunk have written.
        written_TV = torch.linalg.solve_triangular(
            (key_c @ keys_KT) * within_TT * beta_c, wanted_TV, upper=False, unitriangular=True
        )
        read_TV = ((query_c @ keys_KT) * within_TT) @ written_TV
        if state_BHKV is not None:
            read_TV = read_TV + (query_c @ state_BHKV) * since_T1
        added_KV = (key_c * until_T1).transpose(-1, -2) @ written_TV
        last_11 = since_T1[..., -1:, :]
        state_BHKV = added_KV if state_BHKV is None else added_KV + state_BHKV * last_11
        found.append(read_TV)
    out_BTHV = torch.cat(found, dim=2).transpose(1, 2).to(query.dtype)
    return out_BTHV.contiguous(), state_BHKV if output_final_state else None


def state_space_scan(
    hidden_states: Tensor,
    dt: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    chunk_size: int = _CHUNK,
    D: Tensor | None = None,
    dt_bias: Tensor | None = None,
    initial_states: Tensor | None = None,
    dt_softplus: bool = False,
    dt_limit: tuple[float, float] = (0.0, float("inf")),
    return_final_states: bool = False,
    **_: Any,
) -> Tensor | tuple[Tensor, Tensor]:
    """State space of Mamba 2: S_t = exp(dt_t A) S_(t-1) + dt_t x_t B_t, read by C_t.

    Args:
        hidden_states: (B, T, H, V).
        dt: (B, T, H); A, D and dt_bias are (H).
        B: (B, T, G, N), and C; H is a multiple of G.
        chunk_size: of the reference code, which these chunks do not have.
        initial_states: (B, H, V, N).

    Returns:
        (B, T, H, V) in float32, and if asked for the last states.
    """
    if dt_bias is not None:
        dt = dt + dt_bias.to(dt.dtype)
    dt_BHT1 = (F.softplus(dt) if dt_softplus else dt).clamp(*dt_limit).float().transpose(1, 2)
    dt_BHT1 = dt_BHT1[..., None]
    hidden_BTHV = hidden_states.float()
    state_BHVN = None if initial_states is None else initial_states.float()
    found = []
    for chunk in zip(
        (hidden_BTHV.transpose(1, 2) * dt_BHT1).split(_CHUNK, dim=2),
        (dt_BHT1 * A.float()[:, None, None]).split(_CHUNK, dim=2),
        B.float().transpose(1, 2).split(_CHUNK, dim=2),
        C.float().transpose(1, 2).split(_CHUNK, dim=2),
        strict=True,
    ):
        read_BHTV, state_BHVN = _scan_chunk(*chunk, state_BHVN)
        found.append(read_BHTV)
    out_BTHV = torch.cat(found, dim=2).transpose(1, 2)
    if D is not None:
        out_BTHV = out_BTHV + D[:, None] * hidden_BTHV
    out_BTHV = out_BTHV.contiguous()
    assert state_BHVN is not None
    return (out_BTHV, state_BHVN) if return_final_states else out_BTHV


def _scan_chunk(
    hidden_BHTV: Tensor, decay_BHT1: Tensor, b_BGTN: Tensor, c_BGTN: Tensor, state_BHVN: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Outputs (B, H, T, V) of one chunk of a state space, and the state behind it."""
    (rows, heads, tokens, size), groups = hidden_BHTV.shape, b_BGTN.shape[1]
    # Heads of a group share their B and C, so products with these are made once for all of them.
    of_group = (rows, groups, heads // groups * size)
    within_TT, since_T1, until_T1 = _decays(decay_BHT1)
    scores_GTT = c_BGTN @ b_BGTN.transpose(-1, -2)
    scores_HTT = scores_GTT.repeat_interleave(heads // groups, dim=1) * within_TT
    read_HTV = scores_HTT @ hidden_BHTV
    late_GvT = (hidden_BHTV * until_T1).transpose(-1, -2).reshape(*of_group, tokens)
    added_HVN = (late_GvT @ b_BGTN).view(rows, heads, size, -1)
    if state_BHVN is None:
        return read_HTV, added_HVN
    before_GTv = c_BGTN @ state_BHVN.reshape(*of_group, -1).transpose(-1, -2)
    before_HVT = before_GTv.transpose(-1, -2).reshape(rows, heads, size, tokens)
    return read_HTV + before_HVT.transpose(-1, -2) * since_T1, added_HVN + state_BHVN * since_T1[..., -1:, :]


def _normalized(x: Tensor) -> Tensor:
    return x * torch.rsqrt((x * x).sum(dim=-1, keepdim=True) + 1e-6)


def _decays(log_T1: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Decays (…, T, T) between two tokens, (…, T, 1) since the start and until the end."""
    sums_T1 = log_T1.cumsum(dim=-2)
    later_TT = torch.ones(2 * [log_T1.shape[-2]], dtype=torch.bool, device=log_T1.device).triu(1)
    # Hidden before the exponential, which would overflow there.
    within_TT = (sums_T1 - sums_T1.transpose(-1, -2)).masked_fill(later_TT, float("-inf")).exp()
    return within_TT, sums_T1.exp(), (sums_T1[..., -1:, :] - sums_T1).exp()


@dataclass(frozen=True, slots=True)
class _Recurrence:
    """A function in place of a reference function of transformers, which it calls elsewhere."""

    reference: Callable[..., Any]
    own: Callable[..., Any]
    signature: inspect.Signature

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        first = next(chain(args, kwargs.values()))
        run = self.own if first.device.type == "cpu" else self.reference
        if (row := this_thread.row) is None:
            return run(*args, **kwargs)
        if self.own is causal_convolution:
            return row.convolve(run, *args, **kwargs)
        return row.scan(run, self.signature, *args, **kwargs)


_OWN: Final[dict[str, Callable[[Callable[..., Any]], Callable[..., Any]]]] = {
    "causal_conv1d_fn": lambda _: causal_convolution,
    "torch_chunk_gated_delta_rule": lambda _: delta_rule,
    "chunk_kimi_delta_attention": lambda own: partial(own, chunk_size=_KIMI_CHUNK),  # its decays are by channel
    "mamba2_chunk_scan": lambda _: state_space_scan,
}
"""By the name of a reference function in the modules of transformers, what replaces it."""


def adopt_recurrences(model: PreTrainedModel) -> None:
    """Let a model's code call these functions on a CPU, which changes outputs by rounding."""
    # Layers find them among the names of their class's module, so all models of it share them.
    for code in {type(module).__module__ for module in model.modules()}:
        names = vars(sys.modules[code])
        for name in _OWN.keys() & names.keys():
            if not isinstance(reference := names[name], _Recurrence):
                names[name] = _Recurrence(reference, _OWN[name](reference), inspect.signature(reference))

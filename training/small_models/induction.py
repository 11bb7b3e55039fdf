"""Induction heads at the start of training.

A name of several tokens is copied piece by piece: a head finds where the last three tokens stood
before, and repeats what followed them there (Olsson et al., 2022). Gradient descent finds this
late, and in minutes on a CPU not at all, so the parts are set by hand and then trained:

- every embedding gets one common direction, by which a head can attend to a fixed distance
  whatever the tokens are. Output embeddings are tied, where it adds the same to every logit;
- three heads of the first layer attend to the token one, two and three before, by the quickest
  rotary frequencies, and write that token into a subspace of their own;
- induction heads of the second layer compare the tokens before a key with the query's own and those
  before it, by the slowest frequencies, which hardly turn over a prompt, and copy the key's own.

Embeddings have a length of about 1 then, not 0.2 as usual: the optimizer moves short ones so
quickly that the heads of the second layer no longer find what those of the first have written.
"""

from collections.abc import Sequence
from itertools import pairwise
from typing import Final

import torch
from torch import Tensor, nn
from transformers import LlamaForCausalLM
from transformers.models.llama.modeling_llama import LlamaAttention

OFFSETS: Final = (1, 2, 3)
"""Distances, in tokens, at which the heads of the first layer look back."""

_QUICK: Final = 4
"""Number of rotary frequencies that tell neighbouring tokens apart."""

_FARTHEST: Final = 500
"""Tokens over which a match is found: the slow frequencies turn by less than 1 radian."""

_SHARPNESS: Final = 12.0
"""Attention logit that each quick frequency adds at the offset; it adds less elsewhere."""

_WRITTEN: Final = 0.3
"""Scale of a token that is written behind another; it is about as long as an embedding then."""

_OWN: Final = 2.4
"""Scale of a query's own token, which makes it as long as the written ones."""

_AGREEMENT: Final = 2.0
"""Scale of an induction head's queries and keys."""

_COPIED: Final = 2.0
"""Scale of what an induction head copies: more than all else in the residual stream."""


@torch.no_grad()
def initialise_induction(model: LlamaForCausalLM, *, after: int, heads: int) -> None:
    """Set the embeddings' common direction, three heads of the first layer and the induction heads.

    Args:
        after: the second layer's heads before the induction heads, which are left as they are.
    """
    embedding_VD = model.model.embed_tokens.weight
    size = embedding_VD.shape[1]
    # Radians per token of each pair of a head's dimensions, the quickest first.
    frequency_F = model.model.rotary_emb.inv_freq
    first, second = (layer.self_attn for layer in model.model.layers[:2])
    basis_DD = nn.init.orthogonal_(torch.empty(size, size))
    common_D, own_ED = basis_DD[0], basis_DD[1 : 1 + first.head_dim]
    # Each offset has a subspace; the last ones of a small model share dimensions with others.
    before_ED = [basis_DD.roll(-1 - n * first.head_dim, 0)[: first.head_dim] for n in OFFSETS]
    embedding_VD /= embedding_VD.norm(dim=1).mean()
    embedding_VD += common_D
    for head, offset in enumerate(OFFSETS):
        rows = _rows(first, head)
        _look_back(first, rows, common_D, frequency_F * offset)
        _copy(first, rows, own_ED, before_ED[head], scale=_WRITTEN)
    for head in range(after, after + heads):
        rows = _rows(second, head)
        _match(second, rows, [own_ED * _OWN, *before_ED], frequency_F * _FARTHEST < 1)
        _copy(second, rows, own_ED, own_ED, scale=_COPIED)


def _look_back(attention: LlamaAttention, rows: slice, common_D: Tensor, angle_F: Tensor) -> None:
    """Make a head attend to the token that is these angles before, whatever the tokens are."""
    quick_F = (torch.arange(len(angle_F)) < _QUICK).float()
    # The common direction is half of an embedding's square, so an input of length sqrt(D) has
    # sqrt(D / 2) of it in every query and key.
    reach = (_SHARPNESS * 2 / common_D.shape[0] * attention.head_dim**0.5) ** 0.5
    query_E = torch.cat([quick_F, torch.zeros_like(quick_F)])
    key_E = torch.cat([quick_F * angle_F.cos(), quick_F * angle_F.sin()])
    attention.q_proj.weight[rows] = torch.outer(query_E, common_D) * reach
    attention.k_proj.weight[rows] = torch.outer(key_E, common_D) * reach


def _match(
    attention: LlamaAttention, rows: slice, spaces: Sequence[Tensor], slow_F: Tensor
) -> None:
    """Make a head attend to what followed the query's last tokens.

    Args:
        spaces: (E, D) subspaces in which a token has itself and the tokens before it, in order.
        slow_F: the frequencies that take part.
    """
    slow_E = slow_F.repeat(2)
    query_ED, key_ED = attention.q_proj.weight[rows], attention.k_proj.weight[rows]
    query_ED.zero_()
    key_ED.zero_()
    for newer_ED, older_ED in pairwise(spaces):
        mixed_EE = nn.init.orthogonal_(torch.empty(len(slow_E), len(slow_E)))[: int(slow_E.sum())]
        query_ED[slow_E] += _AGREEMENT * mixed_EE @ newer_ED
        key_ED[slow_E] += _AGREEMENT * mixed_EE @ older_ED


def _copy(
    attention: LlamaAttention, rows: slice, read_ED: Tensor, written_ED: Tensor, *, scale: float
) -> None:
    """Make a head write into one subspace what it reads in another."""
    attention.v_proj.weight[rows] = read_ED * scale**0.5
    attention.o_proj.weight[:, rows] = written_ED.T * scale**0.5


def _rows(attention: LlamaAttention, head: int) -> slice:
    return slice(attention.head_dim * head, attention.head_dim * (head + 1))

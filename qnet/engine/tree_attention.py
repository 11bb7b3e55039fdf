"""FlexAttention for packed trees, where a trunk can use it."""

from typing import Any

import torch
import torch._dynamo.config
from torch import Tensor, nn
from torch.nn.attention.flex_attention import BlockMask
from transformers import PreTrainedModel
from transformers.integrations.flex_attention import flex_attention_forward
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS, flex_attention_mask
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from qguide.qnet.engine.tree_masks import TREE_ATTENTION

_MOST_KERNELS = 64
"""Kernels of one process: by precision, pass, kind of head, and lengths that blocks divide."""

_DROPOUTS = ("attention_dropout", "attn_pdrop", "attention_probs_dropout_prob")


def tree_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: BlockMask,
    **kwargs: Any,
) -> tuple[Tensor, Tensor | None]:
    """FlexAttention as transformers calls it, with one data type for queries, keys and values.

    Args:
        query: (B, H, T, D); key and value: (B, Hkv, T, D), positions already applied.
    """
    # In mixed precision the rotation by float32 angles makes float32 queries and keys beside values
    # in bfloat16, which FlexAttention refuses before torch 2.13.
    attended: tuple[Tensor, Tensor | None] = flex_attention_forward(
        module, query.to(value.dtype), key.to(value.dtype), value, attention_mask, **kwargs
    )
    return attended


def use_block_masks(model: PreTrainedModel, device: torch.device) -> bool:
    """Let a trunk that runs on a CUDA device attend to trees by block masks.

    On other devices, and where the architecture does not support FlexAttention or drops attention
    weights at random, masks stay dense.

    Returns:
        True if it attends by block masks now.
    """
    if device.type != "cuda" or not takes_block_masks(model):
        return False
    attend_by_blocks(model)
    return True


def takes_block_masks(model: PreTrainedModel) -> bool:
    """True if FlexAttention computes the attention of this architecture."""
    dropout = any(getattr(model.config, name, 0) for name in _DROPOUTS)
    return bool(model._supports_flex_attn) and not dropout


def attend_by_blocks(model: PreTrainedModel) -> None:
    """Make FlexAttention the attention of a trunk, whatever its device."""
    ALL_ATTENTION_FUNCTIONS.register(TREE_ATTENTION, tree_attention)
    ALL_MASK_ATTENTION_FUNCTIONS.register(TREE_ATTENTION, flex_attention_mask)
    model.set_attn_implementation(TREE_ATTENTION)
    # Past this limit torch would run FlexAttention uncompiled, with all scores in memory. Later
    # than torch 2.6 it is called recompile_limit as well.
    config = torch._dynamo.config
    config.cache_size_limit = max(config.cache_size_limit, _MOST_KERNELS)

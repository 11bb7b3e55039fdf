"""Packed rows of replies as the steps of a training, and a policy that is ready for them."""

import random
from collections.abc import Sequence

import torch
from transformers import PreTrainedModel

from qnet.engine.tree_attention import use_block_masks
from training.optimization.options import Optimization
from training.optimization.packed_replies import PackedReplies
from training.optimization.padded_batches import plan_steps
from training.policy_training.dropout import disable_dropout
from training.policy_training.logprobs import require_packable


def prepare_for_packing(policy: PreTrainedModel, device: torch.device) -> None:
    """Let a policy run on packed rows, where it is now and on the device that trains it.

    Raises:
        ConfigError: it has a memory beside the attention mask.
    """
    use_block_masks(policy, policy.device)
    require_packable(policy)
    use_block_masks(policy, device)  # where FSDP moves it later
    disable_dropout(policy)


def plan_epochs(
    trees: Sequence[PackedReplies], optimization: Optimization, *, seed: int
) -> list[list[list[list[int]]]]:
    """Epoch by epoch, the steps over the packed rows."""
    rng = random.Random(seed)
    return [
        plan_steps(
            [len(tree) for tree in trees],
            batch_tokens=optimization.batch_tokens,
            micro_batch_tokens=optimization.micro_batch_tokens,
            rng=rng,
        )
        for _ in range(optimization.epochs)
    ]

"""Packed rows of replies as the steps of a training, and a policy that is ready for them."""

import random
from collections.abc import Sequence

import torch
from torch import nn
from transformers import PreTrainedModel

from qguide.qnet.engine.tree_attention import use_block_masks
from qguide.training.optimization.options import Optimization
from qguide.training.optimization.packed_replies import PackedReplies
from qguide.training.optimization.padded_batches import plan_steps
from qguide.training.policy_training.logprobs import require_packable


def disable_dropout(model: nn.Module) -> None:
    """Set every dropout probability of a model to 0; its configuration stays as it is."""
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
        # Attention layers have a number instead of a module.
        for name, value in list(vars(module).items()):
            if "dropout" in name and isinstance(value, float):
                setattr(module, name, 0.0)


def prepare_for_packing(policy: PreTrainedModel, device: torch.device) -> None:
    """Let a policy run on packed rows, where it is now and on the device that trains it."""
    use_block_masks(policy, policy.device)
    require_packable(policy)
    use_block_masks(policy, device)  # where FSDP moves it later
    disable_dropout(policy)  # noise in it alone would move its ratio to the reference


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

"""Frozen weights in bfloat16 beside trained ones in float32."""

import torch
from torch import nn

from qguide.qnet.errors import ConfigError
from qguide.training.optimization.options import Optimization


def hold_frozen(model: nn.Module, optimization: Optimization) -> None:
    """Round a model's frozen weights to `optimization.frozen_dtype`, in place."""
    if optimization.frozen_dtype == "float32":
        return
    frozen = [weight for weight in model.parameters() if not weight.requires_grad]
    if not frozen:
        raise ConfigError(
            "optimization.frozen_dtype is 'bfloat16', but all weights are trained, and those stay "
            "in float32; leave it out, or train adapters (optimization.lora)"
        )
    for weight in frozen:
        weight.data = weight.data.to(torch.bfloat16)

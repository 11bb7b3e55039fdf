"""Dropout is off in DPO: noise in the policy alone would move its ratio to the reference."""

from torch import nn


def disable_dropout(model: nn.Module) -> None:
    """Set every dropout probability of a model to 0; its configuration stays as it is."""
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
        # Attention layers have a number instead of a module.
        for name, value in list(vars(module).items()):
            if "dropout" in name and isinstance(value, float):
                setattr(module, name, 0.0)

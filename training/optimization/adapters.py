"""LoRA adapters: beside the frozen matrices of a trunk in training, merged into them at the end.

A merged model has the modules and the names of weights that it had before training, so checkpoints,
servers and exports know nothing of adapters.
"""

from typing import Any, Final, TypeVar

import torch
from torch import nn
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

from qguide.qnet.errors import ConfigError
from qguide.qnet.models.qnet import QNet
from qguide.training.optimization.options import Lora, Optimization

Model = TypeVar("Model", bound=nn.Module)

_FUSED_OUTPUTS: Final = frozenset({"falcon_h1", "falcon_mamba", "mamba", "mamba2", "nemotron_h"})
"""Architectures whose kernel multiplies by the weights of `out_proj` itself, past an adapter, which PEFT refuses."""


def with_adapters(model: Model, options: Lora | None) -> Model:
    """Freeze a language model or a QNet's trunk, and put adapters beside its matrices, in place.

    A new adapter adds nothing, so the model computes what it did. What is trained, adapters and
    value head, is in float32.

    Args:
        options: None changes nothing, and all weights are trained.
    """
    if options is None:
        return model
    from peft import LoraConfig, inject_adapter_in_model  # training all weights needs none

    assert isinstance(model, PreTrainedModel)
    trunk: Any = model.base_model
    targets = linear_layers(trunk, options)
    config = LoraConfig(
        r=options.rank,
        lora_alpha=options.alpha,
        lora_dropout=options.dropout,
        target_modules=list(targets),
        fan_in_fan_out=any(isinstance(layer, Conv1D) for layer in targets.values()),
    )
    model.requires_grad_(False)
    inject_adapter_in_model(config, trunk)
    trunk.train(trunk.training)  # new dropout layers would drop in evaluation, too
    if isinstance(model, QNet):
        model.head.requires_grad_(True)
    for parameter in model.parameters():
        if parameter.requires_grad:
            parameter.data = parameter.data.float()
    return model


def merged(model: Model) -> Model:
    """Add the adapters to the matrices beside them and remove them, in place.

    The model computes what it did; it is not to be trained any further.
    """
    if not isinstance(model, PreTrainedModel) or not hasattr(model.base_model, "peft_config"):
        return model
    from peft.tuners.lora import LoraLayer

    for name, layer in [(n, m) for n, m in model.named_modules() if isinstance(m, LoraLayer)]:
        assert isinstance(layer, nn.Module)
        layer.merge()
        model.set_submodule(name, layer.get_base_layer())
    del model.base_model.peft_config
    return model


def linear_layers(trunk: PreTrainedModel, options: Lora) -> dict[str, nn.Linear | Conv1D]:
    """The layers that get adapters, by their names in the trunk."""
    linear = {n: m for n, m in trunk.named_modules() if isinstance(m, nn.Linear | Conv1D)}
    if trunk.config.model_type in _FUSED_OUTPUTS:
        linear = {name: layer for name, layer in linear.items() if not name.endswith("out_proj")}
    if options.target_modules == "all-linear":
        return linear
    chosen: dict[str, nn.Linear | Conv1D] = {}
    for target in options.target_modules:
        found = {n: m for n, m in linear.items() if f".{n}".endswith(f".{target}")}
        if not found:
            known = ", ".join(sorted({name.rpartition(".")[2] for name in linear}))
            raise ConfigError(
                f"lora.target_modules names {target!r}, which is no linear layer of the trunk that takes adapters; "
                f"choose among {known}, or set it to 'all-linear'"
            )
        chosen |= found
    return chosen


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

"""Hugging Face Accelerate as the training loop uses it: device, precision, data parallelism."""

import logging
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState
from accelerate.tracking import get_available_trackers
from accelerate.utils import DistributedType, GradientAccumulationPlugin, InitProcessGroupKwargs, parse_flag_from_env
from torch import distributed, nn
from torch.distributed.fsdp import MixedPrecisionPolicy
from transformers import PreTrainedModel

from qguide.qnet.errors import ConfigError
from qguide.training.data.runs import is_main_process
from qguide.training.optimization.launch import TIMEOUT
from qguide.training.optimization.options import Optimization

Result = TypeVar("Result")


class ModelHost(nn.Module):
    """Runs functions that use a model as the forward pass of one module.

    FSDP and mixed precision act on a module's `forward`, but losses call several methods of a
    model, and the trunk or the head alone. Inside `forward` of this module they may.
    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model
        # FSDP shards layer by layer: transformers says which modules are layers.
        self._no_split_modules = getattr(model, "_no_split_modules", None)

    def forward(self, function: Callable[..., Result], *args: object) -> Result:
        """Call the function."""
        return function(*args)

    def tie_weights(self) -> None:
        """Tie the model's embeddings again after FSDP has moved them."""
        if isinstance(self.model, PreTrainedModel):
            self.model.tie_weights()


def awaits_weights() -> bool:
    """True in a process to which FSDP will send its shards of the weights that the main one has read."""
    launched = ("ACCELERATE_USE_FSDP", "FSDP_CPU_RAM_EFFICIENT_LOADING")
    return not is_main_process() and all(map(parse_flag_from_env, launched))


def build_accelerator(optimization: Optimization, output: Path) -> Accelerator:
    """The accelerator of one training; `accelerate launch` adds FSDP by its environment."""
    _require_trackers(optimization)
    # Tied embeddings are stored once in a saved state, of which accelerate warns every time.
    logging.getLogger("accelerate.utils.other").setLevel(logging.ERROR)
    # Accelerate keeps its state per process, but a process may train one model after another.
    AcceleratorState._reset_state(reset_partial_state=True)
    accelerator = Accelerator(
        # Unless told so where there is only a CPU, accelerate does not see the group.
        cpu=optimization.device == "cpu" or not torch.accelerator.is_available(),
        mixed_precision=optimization.mixed_precision,
        # The loop accumulates by itself, because its micro-batches differ in weight.
        gradient_accumulation_plugin=GradientAccumulationPlugin(num_steps=1),
        log_with=list(optimization.trackers) or None,
        project_dir=output,
        kwargs_handlers=[InitProcessGroupKwargs(timeout=TIMEOUT)],
    )
    if accelerator.distributed_type == DistributedType.FSDP:
        _configure_fsdp(accelerator, optimization)
    joined = distributed.get_world_size() if distributed.is_initialized() else 1
    if accelerator.num_processes != joined:
        raise RuntimeError(
            f"accelerate has {accelerator.num_processes} processes, but {joined} have joined the "
            "group; each would train alone"
        )
    return accelerator


def _require_trackers(optimization: Optimization) -> None:
    available = {tracker.value for tracker in get_available_trackers()}
    for tracker in optimization.trackers:
        if tracker not in available:
            raise ConfigError(
                f"optimization.trackers names {tracker}, which is not installed; run "
                f"`pip install {tracker}`, or leave it out: metrics.jsonl is always written"
            )


def _configure_fsdp(accelerator: Accelerator, optimization: Optimization) -> None:
    if not accelerator.is_fsdp2:
        raise ConfigError(
            "accelerate was launched with FSDP 1, which this loop does not use; launch it with --fsdp_version 2"
        )
    if optimization.optimizer == "muon":
        raise ConfigError(
            "optimizer is 'muon', which updates whole matrices, but FSDP shards them; set "
            "optimization.optimizer to 'adamw', or train without FSDP"
        )
    if optimization.frozen_dtype != "float32":
        raise ConfigError(
            f"optimization.frozen_dtype is {optimization.frozen_dtype!r}, but FSDP shards weights "
            "of one type together; set it to 'float32', or train without FSDP"
        )
    plugin = accelerator.state.fsdp_plugin
    # Sharded states are read with pickle; the full one is loaded as weights only. The plugin keeps
    # the configurations of a sharded one that it has already, with which a full one does not load.
    plugin.state_dict_config = plugin.optim_state_dict_config = None
    plugin.set_state_dict_type("FULL_STATE_DICT")
    if optimization.mixed_precision == "bf16":
        plugin.mixed_precision_policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)


def enable_gradient_checkpointing(model: nn.Module) -> None:
    """Let the layers of a Hugging Face model compute their activations again when needed."""
    for module in model.modules():
        if getattr(module, "supports_gradient_checkpointing", False):
            assert isinstance(module, PreTrainedModel)
            # Renamed in transformers 5.20; the old name warns.
            enable = getattr(module, "activation_checkpointing_enable", None)
            (enable or module.gradient_checkpointing_enable)({"use_reentrant": False})
            return
    raise ConfigError(
        f"gradient_checkpointing is true, but {type(model).__name__} does not support it; set "
        "optimization.gradient_checkpointing to false"
    )

"""Memory of a training step on a GPU, by a trunk's configuration, before anything is loaded.

The step is one packed tree with gradient checkpointing, in bfloat16: of each layer only its input is
kept, and one layer at a time is computed again for its gradients. What a layer keeps is measured on
tensors without bytes, so any architecture is planned that runs there, mixtures of experts and hybrids
included. All terms grow linearly with the tokens. Tests compare them with what real steps take.
"""

from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import AutoModel, PretrainedConfig, PreTrainedModel
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from qguide.training.optimization.adapters import linear_layers
from qguide.training.optimization.options import Lora

_BF16: Final = 2
_FP32: Final = 4
_ADAMW: Final = 4 * _FP32
"""Bytes of a trained parameter: weight, gradient and Adam's two moments."""

_HEAD_WIDTHS: Final = 4
"""Outputs that the value head's layers keep, each as wide as the head."""

_FUSED: Final = "fused_on_a_gpu"
_TOKENS: Final = 512
"""Tokens of a measured pass, a multiple of the chunks that recurrent layers pad."""


@dataclass(frozen=True, slots=True)
class TrainingMemory:
    """Bytes that a training step takes.

    Attributes:
        frozen: weights that are not trained, and the bfloat16 copies of those that are.
        trained: trained weights, their gradients and Adam's moments, in float32.
        layer_inputs: the input of every layer.
        one_layer: what one layer keeps while it is computed again, and as much for gradients.
        outputs: last hidden states with their gradients, and the value head's layers.
    """

    frozen: int
    trained: int
    layer_inputs: int
    one_layer: int
    outputs: int

    @property
    def total(self) -> int:
        """All of it."""
        return self.frozen + self.trained + self.layer_inputs + self.one_layer + self.outputs


@dataclass(frozen=True, slots=True)
class TrainedTrunk:
    """A trunk's share in the memory of a step.

    Attributes:
        parameters: number of its parameters, those of all experts.
        trained: number of those that are trained, or of its adapters.
        kept: bytes per token that autograd keeps of the layer that keeps most.
        layer_input: bytes per token of the inputs of all layers.
    """

    parameters: int
    trained: int
    kept: int
    layer_input: int
    hidden: int

    def memory(self, tokens: int, *, head_width: int = 1024) -> TrainingMemory:
        """Memory of one training step of a QNet.

        Args:
            tokens: distinct tokens of the largest packed tree. A hybrid reads a tree's paths in passes that have,
                padding included, no more.
        """
        head = head_width * (self.hidden + head_width + 1)
        return TrainingMemory(
            frozen=self.parameters * _BF16,
            trained=_ADAMW * (self.trained + head),
            layer_inputs=tokens * self.layer_input,
            one_layer=2 * tokens * self.kept,
            outputs=tokens * _FP32 * (4 * self.hidden + _HEAD_WIDTHS * head_width),
        )


def trained_trunk(config: PretrainedConfig, *, adapter_rank: int | None) -> TrainedTrunk:
    """Measure a trunk in training.

    Args:
        adapter_rank: rank of LoRA adapters on frozen bfloat16 weights; None trains all weights in
            float32, computing in bfloat16.

    Raises:
        Exception: its layers do not run without weights; a foreign architecture can fail in any way.
    """
    dtype = torch.float32 if adapter_rank is None else torch.bfloat16
    with torch.device("meta"):
        trunk: PreTrainedModel = AutoModel.from_config(config, dtype=dtype).train()
    parameters = sum(weight.numel() for weight in trunk.parameters())
    trained = parameters
    if adapter_rank is not None:
        trained = adapter_rank * sum(sum(layer.weight.shape) for layer in linear_layers(trunk, Lora()).values())
    count = config.num_hidden_layers
    layers = next(found for found in trunk.modules() if isinstance(found, nn.ModuleList) and len(found) == count)
    # The first of each kind are enough.
    last = max({str(layer): number for number, layer in reversed([*enumerate(layers)])}.values())
    del layers[last + 1 :]
    ALL_ATTENTION_FUNCTIONS.register(_FUSED, _attend)
    trunk.set_attn_implementation(_FUSED)
    with FakeTensorMode(), _Products():
        _replace_weights(trunk)
        once, twice = (_kept_by_layers(trunk, layers, tokens) for tokens in (_TOKENS, 2 * _TOKENS))
    kept = max((more - less) // _TOKENS for less, more in zip(once, twice, strict=True))
    inputs = config.num_hidden_layers * config.hidden_size * dtype.itemsize
    return TrainedTrunk(parameters, trained, kept, inputs, config.hidden_size)


def _kept_by_layers(trunk: PreTrainedModel, layers: nn.ModuleList, tokens: int) -> list[int]:
    """Bytes that autograd keeps of each layer of a trunk, beside its weights, in a pass over so many tokens."""
    own = {tensor.untyped_storage() for tensor in (*trunk.parameters(), *trunk.buffers())}
    kept: list[dict[torch.UntypedStorage, int]] = [{} for _ in layers]
    running: list[int] = []

    def keep(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if running and storage not in own:
            kept[running[0]][storage] = storage.nbytes()
        return tensor

    with ExitStack() as hooks:
        for number, layer in enumerate(layers):
            begins = partial(_insert, running, number)
            hooks.callback(layer.register_forward_pre_hook(begins).remove)
            hooks.callback(layer.register_forward_hook(lambda *_: running.clear()).remove)
        hooks.enter_context(torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor))
        hooks.enter_context(torch.autocast("cpu", torch.bfloat16))
        trunk(input_ids=torch.zeros((1, tokens), dtype=torch.long), use_cache=False)
    return [sum(storages.values()) for storages in kept]


def _insert(running: list[int], number: int, *_: object) -> None:
    running[:] = [number]


def _replace_weights(model: nn.Module) -> None:
    """Give a model on the meta device weights of the mode's own, whose device is the CPU, where autocast works."""
    for module in model.modules():
        for name, weight in module.named_parameters(recurse=False):
            setattr(module, name, nn.Parameter(torch.empty(weight.shape, dtype=weight.dtype)))
        for name, buffer in module.named_buffers(recurse=False):
            setattr(module, name, torch.empty(buffer.shape, dtype=buffer.dtype))


class _Fused(torch.autograd.Function):
    """Attention that keeps what a GPU's kernel keeps, and is not computed."""

    @staticmethod
    def forward(ctx: Any, query_BHTC: Tensor, keys_BHTC: Tensor, values_BHTC: Tensor) -> Tensor:
        """Output (B, T, H, C) without numbers."""
        batch, heads, tokens, _ = query_BHTC.shape
        out_BTHC = query_BHTC.new_empty((batch, tokens, heads, values_BHTC.shape[-1]))
        sums_BHT = query_BHTC.new_empty((batch, heads, tokens), dtype=torch.float32)
        ctx.save_for_backward(query_BHTC, keys_BHTC, values_BHTC, out_BTHC, sums_BHT)
        return out_BTHC


def _attend(
    _module: nn.Module, query: Tensor, key: Tensor, value: Tensor, *_mask: object, **_options: object
) -> tuple[Tensor, None]:
    return _Fused.apply(query, key, value), None  # type: ignore[no-untyped-call]


class _Products(TorchDispatchMode):
    """Experts' products in float32, of which torch knows the shape only in bfloat16."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten._grouped_mm.default:
            rows_ND, weights_EDF = args[:2]
            return rows_ND.new_empty((rows_ND.shape[0], weights_EDF.shape[-1]))
        return func(*args, **(kwargs or {}))

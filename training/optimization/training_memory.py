"""Memory of a training step on a GPU, estimated from the trunk's shape before anything is loaded.

The step is one packed tree under FlexAttention with gradient checkpointing, in bfloat16: of each
layer only its input is kept, and one layer at a time is computed again for its gradients. All terms
grow linearly with the tokens. The terms of a layer are an upper bound for the Llama family; a test
compares them with what autograd keeps.
"""

from dataclasses import dataclass
from typing import Final, Self

from transformers import PretrainedConfig

_BF16: Final = 2
_FP32: Final = 4
_ADAMW: Final = 4 * _FP32
"""Bytes of a trained parameter: weight, gradient and Adam's two moments."""

_HEAD_WIDTHS: Final = 4
"""Outputs that the value head's layers keep, each as wide as the head."""


@dataclass(frozen=True, slots=True)
class Dimensions:
    """Sizes of a trunk with gated MLPs, such as Llama, Mistral and Qwen."""

    hidden: int
    layers: int
    query: int
    keys: int
    ffn: int
    vocabulary: int

    @classmethod
    def of(cls, config: PretrainedConfig) -> Self:
        """Sizes by a trunk's configuration."""
        head_size = getattr(config, "head_dim", None) or (config.hidden_size // config.num_attention_heads)
        return cls(
            hidden=config.hidden_size,
            layers=config.num_hidden_layers,
            query=config.num_attention_heads * head_size,
            keys=config.num_key_value_heads * head_size,
            ffn=config.intermediate_size,
            vocabulary=config.vocab_size,
        )

    @property
    def matrices(self) -> tuple[tuple[int, int], ...]:
        """Inputs and outputs of a layer's matrices: q, k, v, o, gate, up, down."""
        hidden, ffn = self.hidden, self.ffn
        attention = ((hidden, self.query), (hidden, self.keys), (hidden, self.keys))
        return (*attention, (self.query, hidden), (hidden, ffn), (hidden, ffn), (ffn, hidden))

    @property
    def parameters(self) -> int:
        """Number of the trunk's parameters, without an output layer."""
        a_layer = sum(inputs * outputs for inputs, outputs in self.matrices) + 2 * self.hidden
        return self.vocabulary * self.hidden + self.layers * a_layer + self.hidden

    def adapter_parameters(self, rank: int) -> int:
        """Number of parameters of LoRA adapters of this rank on every matrix of every layer."""
        return self.layers * rank * sum(inputs + outputs for inputs, outputs in self.matrices)


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


def estimate_memory(
    config: PretrainedConfig,
    *,
    tokens: int,
    adapter_rank: int | None,
    head_width: int = 1024,
    parameters: int | None = None,
) -> TrainingMemory:
    """Reckon the memory of one training step of a QNet.

    Args:
        tokens: distinct tokens of the largest packed tree.
        adapter_rank: rank of LoRA adapters on frozen bfloat16 weights; None trains all weights in
            float32, computing in bfloat16.
        head_width: width of the value head.
        parameters: of the trunk, where they are known; None counts those of a Llama.
    """
    trunk = Dimensions.of(config)
    parameters = parameters or trunk.parameters
    if adapter_rank is None:
        frozen, trained, stream = parameters * _BF16, parameters, _FP32
    else:
        frozen = parameters * _BF16
        trained, stream = trunk.adapter_parameters(adapter_rank), _BF16
    head = head_width * (trunk.hidden + head_width + 1)
    return TrainingMemory(
        frozen=frozen,
        trained=_ADAMW * (trained + head),
        layer_inputs=trunk.layers * tokens * trunk.hidden * stream,
        one_layer=2 * tokens * layer_bytes(trunk, stream=stream),
        outputs=tokens * _FP32 * (4 * trunk.hidden + _HEAD_WIDTHS * head_width),
    )


def layer_bytes(trunk: Dimensions, *, stream: int) -> int:
    """Bytes per token that autograd keeps of one layer.

    Args:
        stream: bytes of a number in the residual stream.
    """
    norms = 2 * trunk.hidden * (stream + 2 * _FP32 + _BF16)
    rotation = 2 * (trunk.query + trunk.keys) * _FP32
    attention = (2 * trunk.query + 2 * trunk.keys + trunk.query) * _BF16
    mlp = 4 * trunk.ffn * _BF16
    return norms + rotation + attention + mlp

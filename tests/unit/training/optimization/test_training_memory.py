"""Memory of a training step: estimated as autograd keeps it, and small enough for one GPU."""

import re
from dataclasses import astuple
from pathlib import Path

import pytest
import torch
from torch import Tensor
from transformers import LlamaConfig

from benchmarks.measurement.shapes import SHAPES, llama_config
from qguide.qnet.models.qnet import QNet
from qguide.qnet.models.qnet_config import QNetConfig
from qguide.training.optimization.training_memory import Dimensions, estimate_memory, layer_bytes

PAGE = Path(__file__).parents[4] / "docs" / "train" / "memory.md"
TOKENS = 256
SMALL = LlamaConfig(
    vocab_size=300,
    hidden_size=64,
    intermediate_size=176,
    num_hidden_layers=4,
    num_attention_heads=8,
    num_key_value_heads=2,
)


def test_parameters_are_counted_as_a_model_of_the_shape_has_them() -> None:
    config = llama_config(SHAPES["7b"])
    with torch.device("meta"):
        net = QNet(QNetConfig(trunk=config.to_dict()))
    assert Dimensions.of(config).parameters == net.trunk.num_parameters()


@pytest.mark.parametrize(("dtype", "stream"), [(torch.float32, 4), (torch.bfloat16, 2)], ids=["all", "adapters"])
def test_what_autograd_keeps_is_at_most_what_is_reckoned(dtype: torch.dtype, stream: int) -> None:
    net = QNet(QNetConfig(trunk=SMALL.to_dict(), head_width=32)).train()
    net.trunk.to(dtype)
    of_all_layers = kept_bytes(net)
    estimated = SMALL.num_hidden_layers * TOKENS * layer_bytes(Dimensions.of(SMALL), stream=stream)
    assert 0.5 * estimated < of_all_layers <= estimated
    net.trunk.activation_checkpointing_enable({"use_reentrant": False})
    rank = 8 if stream == 2 else None
    memory = estimate_memory(SMALL, tokens=TOKENS, adapter_rank=rank, head_width=32)
    of_inputs = kept_bytes(net)
    assert memory.layer_inputs <= of_inputs <= memory.layer_inputs + memory.outputs


def test_a_tree_of_32768_tokens_of_a_7b_trunk_fits_80_gb_with_adapters() -> None:
    config = llama_config(SHAPES["7b"])
    whole, half = (estimate_memory(config, tokens=t, adapter_rank=16) for t in (32_768, 16_384))
    assert whole.total < 80e9
    assert whole.total - half.total == half.total - half.frozen - half.trained
    assert estimate_memory(config, tokens=32_768, adapter_rank=None).total > 80e9


def test_the_table_of_the_docs_is_what_is_reckoned() -> None:
    rows = re.findall(r"^\| (1b|7b) \| (all weights|adapters) \| (.*) \|$", PAGE.read_text(), re.M)
    assert rows
    for size, trained, cells in rows:
        tokens, *shown = cells.split(" | ")
        memory = estimate_memory(
            llama_config(SHAPES[size]),
            tokens=int(tokens.replace(",", "")),
            adapter_rank=None if trained == "all weights" else 16,
        )
        assert shown == [f"{part / 2**30:.1f}" for part in (*astuple(memory), memory.total)]


def kept_bytes(net: QNet) -> int:
    """Bytes of the tensors of all tokens that a forward pass in bfloat16 keeps for gradients."""
    kept: dict[int, Tensor] = {}

    def pack(tensor: Tensor) -> Tensor:
        if TOKENS in tensor.shape:
            kept[tensor.untyped_storage().data_ptr()] = tensor
        return tensor

    token_ids = torch.arange(TOKENS)[None] % 300
    hooks = torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor)
    with hooks, torch.autocast("cpu", torch.bfloat16):
        net.hidden_states(token_ids)
    return sum(tensor.untyped_storage().nbytes() for tensor in kept.values())

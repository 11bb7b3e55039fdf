"""Memory of a training step: estimated as real steps take it, and small enough for one GPU."""

import re
from dataclasses import astuple
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import LlamaConfig, PretrainedConfig, Qwen3_5TextConfig, Qwen3MoeConfig

from benchmarks.measurement.shapes import SHAPES, llama_config
from qguide.qnet.engine.model_memory import PeakBytes
from qguide.qnet.engine.tree_branches import has_recurrent_layers
from qguide.qnet.models.qnet import QNet
from qguide.qnet.models.qnet_config import QNetConfig
from qguide.training.optimization.adapters import hold_frozen, with_adapters
from qguide.training.optimization.options import Lora, Optimization
from qguide.training.optimization.packed_trees import PackedTree
from qguide.training.optimization.training_memory import trained_trunk
from qguide.training.q_training.validation import hidden_of_tree

PAGE = Path(__file__).parents[4] / "docs" / "train" / "memory.md"
TOKENS = 256
SIZES: dict[str, Any] = {
    "vocab_size": 300,
    "hidden_size": 64,
    "intermediate_size": 176,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
}
HEADS: dict[str, Any] = {"head_dim": 8}
LLAMA = LlamaConfig(**SIZES)
EXPERTS = Qwen3MoeConfig(**SIZES, **HEADS, moe_intermediate_size=32, num_experts=8, num_experts_per_tok=2)
RECURRENT: dict[str, Any] = {"linear_num_value_heads": 4, "linear_num_key_heads": 2}
HYBRID = Qwen3_5TextConfig(**SIZES, **RECURRENT, head_dim=16, linear_key_head_dim=16, linear_value_head_dim=16)


@pytest.mark.parametrize("rank", [None, 8], ids=["all", "adapters"])
@pytest.mark.parametrize(
    "config",
    [
        pytest.param(LLAMA, id="attention"),
        pytest.param(EXPERTS, id="experts"),
        pytest.param(HYBRID, id="hybrid", marks=pytest.mark.slow),
    ],
)
def test_a_step_takes_at_most_what_is_planned(config: PretrainedConfig, rank: int | None) -> None:
    net = QNet(QNetConfig(trunk=config.to_dict(), head_width=32)).train()
    parameters = net.trunk.num_parameters()
    if rank:
        hold_frozen(with_adapters(net, Lora(rank=rank)), Optimization(lora=Lora(), frozen_dtype="bfloat16"))
    net.trunk.activation_checkpointing_enable({"use_reentrant": False})
    trunk = trained_trunk(config, adapter_rank=rank)
    assert trunk.parameters == parameters
    assert trunk.trained == sum(p.numel() for p in net.trunk.parameters() if p.requires_grad)
    planned = trunk.memory(TOKENS, head_width=32)
    copies = 0 if rank else planned.frozen
    gradients = planned.trained // 4  # the weights lie there before the step, the moments only after it
    within = copies + gradients + planned.layer_inputs + planned.one_layer + planned.outputs
    taken = peak_of_step(net)
    assert 0.4 * within < taken <= within


def peak_of_step(net: QNet) -> int:
    """Most bytes that a step in bfloat16 takes beside its weights, of a hybrid for both paths of a tree."""
    stem = [i % 300 for i in range(TOKENS // 4)]
    tree = PackedTree()
    for tail in (5, 7):
        tree.add([*stem, *(tail * i % 300 for i in range(TOKENS // 4))])
    with PeakBytes(net) as peak, torch.autocast("cpu", torch.bfloat16):
        if has_recurrent_layers(net.trunk):
            hidden_TD = hidden_of_tree(net, tree)
        else:
            hidden_TD = net.hidden_states(torch.arange(TOKENS)[None] % 300)
        net.head.outputs(hidden_TD).sum().backward()
    return int(peak.most)


def test_a_tree_of_32768_tokens_of_a_7b_trunk_fits_80_gb_with_adapters() -> None:
    config = llama_config(SHAPES["7b"])
    trunk = trained_trunk(config, adapter_rank=16)
    whole, half = (trunk.memory(tokens) for tokens in (32_768, 16_384))
    assert whole.total < 80e9
    assert whole.total - half.total == half.total - half.frozen - half.trained
    assert trained_trunk(config, adapter_rank=None).memory(32_768).total > 80e9


def test_the_table_of_the_docs_is_what_is_reckoned() -> None:
    rows = re.findall(r"^\| (1b|7b) \| (all weights|adapters) \| (.*) \|$", PAGE.read_text(), re.M)
    assert rows
    for size, trained, cells in rows:
        tokens, *shown = cells.split(" | ")
        rank = None if trained == "all weights" else 16
        memory = trained_trunk(llama_config(SHAPES[size]), adapter_rank=rank).memory(int(tokens.replace(",", "")))
        assert shown == [f"{part / 2**30:.1f}" for part in (*astuple(memory), memory.total)]

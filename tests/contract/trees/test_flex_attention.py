"""Packed trees under FlexAttention: the hidden states and gradients of dense masks."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch

from qguide.qnet.engine.token_trie import TokenTrie
from qguide.qnet.engine.tree_attention import (
    TreeMask,
    attend_by_blocks,
    takes_block_masks,
    tree_attention,
    tree_inputs,
    use_block_masks,
)
from qguide.qnet.models.qnet import QNet
from tests.support.architectures import tiny_config, tiny_pair
from tests.support.devices import needs_cuda
from tests.support.random_trees import random_tree

# Importing and running torch's compiler warns of torch's own deprecated parts.
pytestmark = pytest.mark.filterwarnings("default")

FULL = ("llama", "phi3", "qwen3", "qwen3_moe")
WINDOWED = ("gemma2", "gemma3_text", "mistral", "olmo3")
WITH_SINKS = "gpt_oss"
"""FlexAttention has no sinks on a CPU."""
LENGTHS = (40, 128, 389, 640)


@contextmanager
def not_compiled() -> Iterator[None]:
    """FlexAttention without a compiler, which a CPU's forward passes do not need."""
    with torch.compiler.set_stance("force_eager"):
        yield


@pytest.mark.parametrize("model_type", [*FULL, *WINDOWED])
def test_a_tree_has_the_hidden_states_of_its_dense_mask(model_type: str) -> None:
    dense, flex = nets(model_type, "cpu")
    assert takes_block_masks(flex.trunk)
    attend_by_blocks(flex.trunk)
    tree = random_tree(200, seed=1)
    with torch.inference_mode(), not_compiled():
        expected_BTD = dense.hidden_states(**tree_inputs(tree, dense.device))
        found_BTD = flex.hidden_states(**tree_inputs(tree, flex.device))
    torch.testing.assert_close(found_BTD, expected_BTD, atol=5e-5, rtol=0)
    window = getattr(flex.trunk.config, "sliding_window", None)
    assert not isinstance(window, int) or max(tree.depths) > 2 * window


@pytest.mark.parametrize("model_type", [pytest.param("llama", marks=needs_cuda)])
def test_on_cuda_mixed_precision_stays_close_to_dense_masks(model_type: str) -> None:
    dense, flex = nets(model_type, "cuda")
    assert use_block_masks(flex.trunk, flex.device)
    tree = random_tree(300, seed=0)
    with torch.autocast("cuda", torch.bfloat16):
        outputs, gradients = zip(*(trained(net, tree) for net in (dense, flex)), strict=True)
    torch.testing.assert_close(*outputs, atol=0.1, rtol=0.1)
    assert all(torch.isfinite(gradient).all() for gradient in gradients[1].values())


@pytest.mark.parametrize("model_type", [pytest.param(m, marks=needs_cuda) for m in (*FULL, *WINDOWED, WITH_SINKS)])
def test_on_cuda_hidden_states_and_gradients_are_those_of_dense_masks(model_type: str) -> None:
    dense, flex = nets(model_type, "cuda")
    assert use_block_masks(flex.trunk, flex.device)
    for length in LENGTHS:  # several, because FlexAttention is compiled again for some of them
        tree = random_tree(length, seed=length)
        outputs, gradients = zip(*(trained(net, tree) for net in (dense, flex)), strict=True)
        torch.testing.assert_close(*outputs, atol=1e-4, rtol=1e-4)
        for name, expected in gradients[0].items():
            torch.testing.assert_close(gradients[1][name], expected, atol=1e-3, rtol=1e-3)


@pytest.mark.parametrize("device", [pytest.param("cuda", marks=needs_cuda)])
def test_on_cuda_a_long_tree_takes_no_memory_that_grows_with_its_square(device: str) -> None:
    _, flex = nets("llama", device)
    assert use_block_masks(flex.trunk, flex.device)
    peaks = []
    for length in (16_384, 32_768):
        tree = random_tree(length, seed=0)
        trained(flex, tree)  # compiles
        torch.cuda.reset_peak_memory_stats()
        trained(flex, tree)
        peaks.append(torch.cuda.max_memory_allocated())
    assert peaks[1] < 2.2 * peaks[0]


@pytest.mark.parametrize("device", [pytest.param("cuda", marks=needs_cuda)])
def test_heads_that_cuda_has_no_kernel_for_keep_dense_masks(device: str) -> None:
    one, _ = tiny_pair(tiny_config("llama"))
    torch.nn.Module.to(one.model, device)
    assert takes_block_masks(one.model.trunk)
    assert not use_block_masks(one.model.trunk, one.model.device)
    trained(one.model, random_tree(40, seed=0))


def test_queries_and_keys_of_a_wider_type_attend_as_values_do() -> None:
    generator = torch.Generator().manual_seed(0)
    query, key, value = torch.randn((3, 1, 4, 30, 8), generator=generator)
    blocks = TreeMask.of(random_tree(30, seed=0)).blocks()
    low = torch.bfloat16
    with torch.inference_mode(), not_compiled():
        mixed, _ = tree_attention(torch.nn.Module(), query, key, value.to(low), blocks)
        alike, _ = tree_attention(torch.nn.Module(), query.to(low), key.to(low), value.to(low), blocks)
    assert mixed.dtype == low
    assert torch.equal(mixed, alike)


def test_other_devices_and_dropout_keep_dense_masks() -> None:
    _, net = nets("llama", "cpu")
    assert not use_block_masks(net.trunk, net.device)
    mask = TreeMask.of(random_tree(20, seed=0))
    assert isinstance(mask.of_layers(net.trunk.config), torch.Tensor)
    net.trunk.config.attention_dropout = 0.1
    assert not takes_block_masks(net.trunk)
    assert not takes_block_masks(nets("gpt2", "cpu")[0].trunk)


def nets(model_type: str, device: str) -> tuple[QNet, QNet]:
    """Two equal tiny nets, on CUDA with heads as wide as its kernels want them."""
    config = tiny_config(model_type)
    if device == "cuda":
        wide = {"hidden_size": 64} | ({"head_dim": 16} if hasattr(config, "head_dim") else {})
        config = type(config)(**config.to_dict() | wide)
    one, other = tiny_pair(config)
    for loaded in (one, other):
        torch.nn.Module.to(loaded.model, device)
    return one.model, other.model


def trained(net: QNet, tree: TokenTrie) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """The hidden states of a tree, and the gradients of a loss on them."""
    net.zero_grad()
    hidden_BTD = net.hidden_states(**tree_inputs(tree, net.device))
    (hidden_BTD**2).mean().backward()
    gradients = {name: p.grad for name, p in net.named_parameters() if p.grad is not None}
    return hidden_BTD.detach(), gradients

"""Masks of packed trees: by intervals as by walking, in blocks as dense, in linear memory."""

from typing import Any

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask, create_block_mask
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from qguide.qnet.engine.token_trie import TokenTrie
from qguide.qnet.engine.tree_attention import BLOCK, TreeMask
from tests.support.random_trees import random_tree

TREES = st.builds(random_tree, st.integers(1, 400), seed=st.integers(0, 999))
WINDOWS = st.none() | st.integers(1, 80)


def seen_by_walking(tree: TokenTrie, window: int | None) -> Tensor:
    """(T, T): what each token's path has within the window."""
    depths_T = torch.tensor(tree.depths)
    near_TT = depths_T[:, None] - depths_T < (window or len(tree))
    return torch.from_numpy(tree.visible()) & near_TT


@given(tree=TREES, window=WINDOWS)
def test_a_token_sees_its_path_within_the_window(tree: TokenTrie, window: int | None) -> None:
    mask = TreeMask.of(tree)
    seen_TT = seen_by_walking(tree, window)
    assert torch.equal(mask.dense(window)[0, 0], seen_TT)
    assert torch.equal(mask.bias(window)[0, 0] == 0, seen_TT)


@settings(max_examples=30)
@given(tree=TREES, window=WINDOWS)
def test_the_blocks_are_those_of_the_whole_mask(tree: TokenTrie, window: int | None) -> None:
    mask = TreeMask.of(tree)
    found = mask.blocks(window)
    expected = create_block_mask(found.mask_mod, None, None, len(tree), len(tree), device="cpu", BLOCK_SIZE=BLOCK)
    assert found.shape == expected.shape
    assert blocks_of(found) == blocks_of(expected)
    index_T = torch.arange(len(tree))
    none = torch.zeros((), dtype=torch.long)
    seen_TT = found.mask_mod(none, none, index_T[:, None], index_T)
    assert torch.equal(seen_TT, seen_by_walking(tree, window))


def blocks_of(mask: BlockMask) -> list[list[list[int]]]:
    """Columns of each row of blocks: those that are seen in part, and those seen as a whole."""
    assert mask.full_kv_num_blocks is not None
    assert mask.full_kv_indices is not None
    pairs = ((mask.kv_num_blocks, mask.kv_indices), (mask.full_kv_num_blocks, mask.full_kv_indices))
    return [
        [sorted(row[:number].tolist()) for number, row in zip(numbers[0, 0], columns[0, 0], strict=True)]
        for numbers, columns in pairs
    ]


class LargestTensor(TorchDispatchMode):
    """Notes the size of the largest tensor that is made while it is active."""

    def __init__(self) -> None:
        start: Any = super().__init__  # torch leaves it without types
        start()
        self.nbytes = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        made = [leaf for leaf in tree_leaves(result) if isinstance(leaf, Tensor)]
        self.nbytes = max([self.nbytes, *(t.untyped_storage().nbytes() for t in made)])
        return result


def test_a_mask_of_8192_tokens_takes_memory_linear_in_them() -> None:
    tokens = 8_192
    tree = random_tree(tokens, seed=3)
    with LargestTensor() as largest:
        blocks = TreeMask.of(tree).blocks()
    assert largest.nbytes <= 2 * BLOCK * tokens  # of 64 MiB that it has when dense
    kept = sum(t.untyped_storage().nbytes() for t in blocks.as_tuple() if isinstance(t, Tensor))
    assert kept < 2**18
    none = torch.zeros((), dtype=torch.long)
    for row in range(0, tokens, 241):
        seen_T = blocks.mask_mod(none, none, torch.tensor(row), torch.arange(tokens))
        assert seen_T.nonzero()[:, 0].tolist() == tree.path_to(row)

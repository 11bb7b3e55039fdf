"""FlexAttention for packed trees, where a trunk can use it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Self, TypedDict

import torch
import torch._dynamo.config
from torch import Tensor, nn
from torch.nn.attention.flex_attention import BlockMask
from transformers import PretrainedConfig, PreTrainedModel
from transformers.integrations.flex_attention import flex_attention_forward
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS, flex_attention_mask
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from qguide.qnet.engine.kernels import upload
from qguide.qnet.engine.token_trie import TokenTrie
from qguide.qnet.engine.windows import SLIDING, window_of

TREE_ATTENTION: Final = "qguide_trees"
"""The attention of `tree_attention`, which takes blocks."""

BLOCK: Final = 128
"""Rows and columns of a block, FlexAttention's own choice."""

_ROWS_AT_ONCE: Final = 2 * BLOCK

LayerMask = Tensor | BlockMask
TrunkMask = LayerMask | dict[str, LayerMask]
"""A mask for all layers, or one for each kind of layer."""

Sees = Callable[[Tensor, Tensor], Tensor]
"""Tells of indices of tokens, rows and columns that broadcast, which row sees which column."""


@dataclass(frozen=True, slots=True, eq=False)
class TreeMask:
    """Visibility in a packed row: a token sees itself and the tokens before it on its own path.

    Attributes:
        enter_T: number of each token in pre-order.
        leave_T: one past the number of its last descendant.
        positions_T: how many tokens stand before each on its path.
    """

    enter_T: Tensor
    leave_T: Tensor
    positions_T: Tensor

    @classmethod
    def of(cls, tree: TokenTrie, device: torch.device | str = "cpu") -> Self:
        """The mask of a packed tree, on the device of the model that runs it."""
        enter, leave = _preorder(tree.before)
        columns = (enter, leave, tree.depths)
        return cls(*(upload(c, torch.device(device), dtype=torch.int32) for c in columns))

    def __len__(self) -> int:
        return len(self.enter_T)

    def sees(self, window: int | None = None) -> Sees:
        """Visibility by indices of rows and columns; a `window` hides what lies as many positions before a token."""
        enter_T, leave_T, positions_T = self.enter_T, self.leave_T, self.positions_T
        # A tensor instead of a condition: FlexAttention compiles one kernel for all windows.
        oldest_T = positions_T - (len(self) if window is None else window - 1)

        def seen(row: Tensor, column: Tensor) -> Tensor:
            number = enter_T[row]
            # In pre-order the tokens below one are an unbroken range of numbers that begins with
            # its own: two comparisons instead of a path.
            below = (enter_T[column] <= number) & (number < leave_T[column])
            return below & (positions_T[column] >= oldest_T[row])

        return seen

    def dense(self, window: int | None = None) -> Tensor:
        """(1, 1, T, T): true where a token (row) sees another (column)."""
        index_T = torch.arange(len(self), device=self.enter_T.device)
        return self.sees(window)(index_T[:, None], index_T)[None, None]

    def bias(self, window: int | None = None) -> Tensor:
        """(1, 1, T, T) added to scores: 0 where a token sees another, -inf elsewhere."""
        hidden_TT = ~self.dense(window)
        return torch.zeros(hidden_TT.shape, device=hidden_TT.device).masked_fill_(hidden_TT, float("-inf"))

    def blocks(self, window: int | None = None) -> BlockMask:
        """The same for FlexAttention, from the blocks in which any row sees any column."""
        sees = self.sees(window)
        pairs_NN = self._pairs_of_blocks(sees)
        # Blocks in which every pair is seen run without the mask function.
        whole_NN = pairs_NN == BLOCK * BLOCK
        number_N, columns_NN = _in_order((pairs_NN > 0) & ~whole_NN)
        whole_number_N, whole_columns_NN = _in_order(whole_NN)
        return BlockMask.from_kv_blocks(
            number_N,
            columns_NN,
            whole_number_N,
            whole_columns_NN,
            BLOCK_SIZE=BLOCK,
            mask_mod=lambda batch, head, row, column: sees(row, column),
            seq_lengths=(len(self), len(self)),
        )

    def of_layers(self, config: PretrainedConfig) -> TrunkMask:
        """The mask, dense or by blocks, as a trunk takes it: one, or one by kind of layer where some have windows."""
        window = window_of(config)
        if window is None:
            return self._of_layer(config, None)
        kinds = set(getattr(config, "layer_types", None) or (SLIDING,))
        if kinds == {SLIDING}:
            return self._of_layer(config, window)
        masks = dict.fromkeys(kinds, self._of_layer(config, None))
        return masks | {SLIDING: self._of_layer(config, window)}

    def _of_layer(self, config: PretrainedConfig, window: int | None) -> LayerMask:
        if config._attn_implementation == TREE_ATTENTION:
            return self.blocks(window)
        return self.bias(window) if config._attn_implementation == "eager" else self.dense(window)

    def _pairs_of_blocks(self, sees: Sees) -> Tensor:
        """(N, N) how many pairs of a row and a column see each other, by block."""
        tokens, device = len(self), self.enter_T.device
        blocks = -(-tokens // BLOCK)
        pairs_NN = torch.zeros((blocks, blocks), dtype=torch.int32, device=device)
        for start in range(0, tokens, _ROWS_AT_ONCE):
            # Parents come before their children, so no row sees a column after it.
            stop = min(start + _ROWS_AT_ONCE, tokens)
            rows, columns = -(-(stop - start) // BLOCK), -(-stop // BLOCK)
            seen_RC = torch.zeros((rows * BLOCK, columns * BLOCK), dtype=torch.bool, device=device)
            index_C = torch.arange(stop, device=device)
            seen_RC[: stop - start, :stop] = sees(index_C[start:, None], index_C)
            by_block = seen_RC.view(rows, BLOCK, columns, BLOCK)
            first = start // BLOCK
            pairs_NN[first : first + rows, :columns] = by_block.sum((1, 3), dtype=torch.int32)
        return pairs_NN


class TreeInputs(TypedDict):
    """A packed tree as the inputs of a model, (1, T) each but for the mask."""

    input_ids: Tensor
    attention_mask: TreeMask
    position_ids: Tensor


def tree_inputs(tree: TokenTrie, device: torch.device) -> TreeInputs:
    """The inputs of a model that runs a packed tree on its device."""
    return {
        "input_ids": upload([tree.token_ids], device),
        "attention_mask": TreeMask.of(tree, device),
        "position_ids": upload([tree.depths], device),
    }


def _preorder(before: Sequence[int]) -> tuple[list[int], list[int]]:
    """Number of each token in pre-order, and one past that of its last descendant."""
    size = [1] * len(before)
    # Children come after their parents: backwards, a size is complete before it is added.
    for index in range(len(before) - 1, -1, -1):
        if before[index] >= 0:
            size[before[index]] += size[index]
    enter: list[int] = []
    free: list[int] = []
    roots = 0
    for parent, tokens in zip(before, size, strict=True):
        first = free[parent] if parent >= 0 else roots
        if parent >= 0:
            free[parent] += tokens
        else:
            roots += tokens
        enter.append(first)
        # The next child's number, which each child moves on by the size of its branch.
        free.append(first + 1)
    return enter, [first + tokens for first, tokens in zip(enter, size, strict=True)]


def _in_order(chosen_NN: Tensor) -> tuple[Tensor, Tensor]:
    """Number of columns of each row, (1, 1, N), and all columns, these first, (1, 1, N, N)."""
    # Stable: the chosen columns first and in order; the kernel reads no more of them than their number.
    columns_NN = chosen_NN.int().argsort(dim=-1, descending=True, stable=True)
    number_N = chosen_NN.sum(-1, dtype=torch.int32)
    return number_N[None, None], columns_NN.int()[None, None]


_MOST_KERNELS = 64  # kernels of one process: by precision, pass, kind of head, and lengths that blocks divide

_LEAST_HEAD_SIZE = 16  # of FlexAttention's kernels on CUDA

_DROPOUTS = ("attention_dropout", "attn_pdrop", "attention_probs_dropout_prob")


def tree_attention(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: BlockMask, **kwargs: Any
) -> tuple[Tensor, Tensor | None]:
    """FlexAttention as transformers calls it, with one data type for queries, keys and values.

    Args:
        query: (B, H, T, D); key and value: (B, Hkv, T, D), positions already applied.
    """
    # In mixed precision the rotation by float32 angles makes float32 queries and keys beside values
    # in bfloat16, which FlexAttention refuses before torch 2.13.
    attended: tuple[Tensor, Tensor | None] = flex_attention_forward(
        module, query.to(value.dtype), key.to(value.dtype), value, attention_mask, **kwargs
    )
    return attended


def use_block_masks(model: PreTrainedModel, device: torch.device) -> bool:
    """Let a trunk that runs on a CUDA device attend to trees by block masks; True if it does now.

    On other devices, and where the architecture does not support FlexAttention, drops attention
    weights at random or has heads of fewer than 16 numbers, masks stay dense.
    """
    config = model.config
    head_size = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    narrow = head_size < _LEAST_HEAD_SIZE
    if device.type != "cuda" or narrow or not takes_block_masks(model):
        return False
    attend_by_blocks(model)
    return True


def takes_block_masks(model: PreTrainedModel) -> bool:
    """True if FlexAttention computes the attention of this architecture."""
    dropout = any(getattr(model.config, name, 0) for name in _DROPOUTS)
    return bool(model._supports_flex_attn) and not dropout


def attend_by_blocks(model: PreTrainedModel) -> None:
    """Make FlexAttention the attention of a trunk, whatever its device."""
    ALL_ATTENTION_FUNCTIONS.register(TREE_ATTENTION, tree_attention)
    ALL_MASK_ATTENTION_FUNCTIONS.register(TREE_ATTENTION, flex_attention_mask)
    model.set_attn_implementation(TREE_ATTENTION)
    # Past this limit torch would run FlexAttention uncompiled, with all scores in memory. Later
    # than torch 2.6 it is called recompile_limit as well.
    config = torch._dynamo.config
    config.cache_size_limit = max(config.cache_size_limit, _MOST_KERNELS)

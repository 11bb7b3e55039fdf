"""Sliding windows: what a layer's rows still see of the columns before them.

A window hides from a token whatever lies as many positions before it as the window is long. Columns
are not positions (candidates lie side by side), so buffers note the positions of their tokens.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor, nn
from transformers import PretrainedConfig

from qguide.qnet.engine.kernels import upload
from qguide.qnet.engine.kv_buffer import Columns, KVBuffer

SLIDING: Final = "sliding_attention"
"""The kind of layer that has a window, as configurations call it."""

_CHOSEN: Final = {"index_topk": 2, "block_topk": 1, "topk_blocks": 1}
"""Names of a layer's number of chosen tokens, or blocks of tokens, and one that a few tokens exceed."""


@dataclass(frozen=True, slots=True)
class WindowView:
    """Columns before a group's own, as far as its rows see them.

    Attributes:
        whole: columns that every row sees.
        partly: columns that some rows see.
    """

    whole: Columns
    partly: Columns = ()


def view(buffer: KVBuffer, seen: Columns, positions: list[int], window: int) -> WindowView:
    """View of `seen` for rows at these positions; its positions grow within each range."""
    whole, partly = [], []
    # The oldest position that any row sees, and the oldest that every row sees.
    edges = torch.tensor([min(positions) - window + 1, max(positions) - window + 1])
    for columns in seen:
        first, every = torch.searchsorted(buffer.positions_of(columns), edges).tolist()
        if first < every:
            partly.append(range(columns.start + first, columns.start + every))
        if columns.start + every < columns.stop:
            whole.append(range(columns.start + every, columns.stop))
    return WindowView(tuple(whole), tuple(partly))


def hide_behind(
    buffer: KVBuffer, columns: Columns, positions: list[int], window: int, *, bias_RB: Tensor | None, like: Tensor
) -> Tensor:
    """Bias, 0 or -inf, (rows, columns): -inf behind each row's window, and where `bias_RB` hides the last B columns."""
    columns_C = torch.cat([buffer.positions_of(some) for some in columns])
    hidden_RC = columns_C <= torch.tensor(positions)[:, None] - window
    bias_RC = like.new_zeros(hidden_RC.shape)
    if bias_RB is not None:
        bias_RC[:, -bias_RB.shape[1] :] += bias_RB
    return bias_RC.masked_fill_(upload(hidden_RC, like.device), float("-inf"))


def window_of(config: PretrainedConfig) -> int | None:
    """Length of the windows that some layers have; None where every layer sees everything."""
    window = getattr(config, "sliding_window", None)
    if not isinstance(window, int) or not getattr(config, "use_sliding_window", True):
        return None
    kinds = getattr(config, "layer_types", None)
    return None if kinds and SLIDING not in kinds else window


@contextmanager
def shortened(config: PretrainedConfig, window: int) -> Iterator[None]:
    """Within this, the masks that transformers makes for the model have a window so long."""
    length = config.sliding_window
    config.sliding_window = window
    try:
        yield
    finally:
        config.sliding_window = length


def chooses(model: nn.Module) -> bool:
    """True if layers choose the tokens that they attend to."""
    return any(vars(module).keys() & _CHOSEN.keys() for module in model.modules())


@contextmanager
def choosing_few(model: nn.Module) -> Iterator[None]:
    """Within this, layers that attend to some chosen tokens choose few, as they do behind a long history."""
    limits = [
        (module, name, few)
        for module in model.modules()
        if vars(module).keys() & _CHOSEN.keys()
        for name, few in (*_CHOSEN.items(), ("block_size", 2))
        if name in vars(module)
    ]
    before = [getattr(module, name) for module, name, _ in limits]
    for module, name, few in limits:
        setattr(module, name, few)
    try:
        yield
    finally:
        for (module, name, _), value in zip(limits, before, strict=True):
            setattr(module, name, value)
